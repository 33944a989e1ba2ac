"""Words that never stand in a tag: function words, and the filler of documentation and reports.

A phrase ends where one of them stands. `WEAK_WORDS` may stand *inside* a longer tag ("data type") but are
no tag alone: by themselves they say nothing of the subject.
"""

_FUNCTION_WORDS = """
a able about above according across after afterwards again against ago all almost alone along already
also although always am among amongst an and another any anybody anyhow anyone anything anyway anywhere
approximately apr april are aren around as aside ask asked at aug august away back bad based be became
because become becomes becoming been before beforehand began begin begins begun behind being below beside
besides best better between beyond big billion bit both but by came can cannot certain come comes
commonly corresponding could couldn currently date day days dec december despite did didn different
directly do does doesn doing don done down dr due during e.g each earlier early easily eg eight either
else elsewhere end ended ends enough especially est et etc even ever every everybody everyone everything
everywhere exactly except far feb february feel felt few fewer find finds first five followed following
follows for former formerly found four frequently friday from full fully further furthermore gave
generally get gets getting give given gives go goes going gone good got great greater greatest had hadn
half happen happened happens has hasn have haven having he hence her here hers herself high higher
highest him himself his hour hours how however hundred hundreds i i.e ie if in include included includes
including indeed instead into is isn it its itself jan january jul july jun june just keep kept kind
kinds know known large largely larger largest last late later latter least less let lets like likely
little ll long longer longest look looked looking looks lot lots low lower lowest made main mainly major
make makes making many mar march may maybe me meanwhile mid might million millions mine minor minute
minutes monday month months more moreover most mostly mr mrs ms much must my myself namely near nearly
need needs neither never nevertheless new next nine no nobody non none nonetheless nor not notably
nothing nov november now nowhere oct october of off often oh okay old on once one ones only onto or other
others otherwise our ours ourselves out over overall own part partially particular particularly per
percent percentage perhaps please possibly previous previously primarily probably put quite rarely rather
re really recently related relatively respectively roughly said same saturday say says second see seem
seemed seems seen sep sept september set sets seven seventh several shall she short shorter should
shouldn similar simply since six small smaller smallest so some somebody somehow someone something
sometimes somewhere sort sorts start started starts still stop subsequently such sunday take taken takes
taking tell ten than that the their theirs them themselves then there thereafter thereby therefore these
they thing things think third this those though thought thousand thousands three through throughout
thursday thus till time times to today together told too took total toward towards tried tries try trying
tuesday twice two typically unable under unless unlike until up upon us use used useful uses using
usually various ve very via vs want wanted wants was wasn way ways we wednesday week weeks well went were
weren what whatever when whenever where whereas wherever whether which while who whoever whole whom whose
why will with within without won work worked working works would wouldn yeah year years yes yet you your
yours yourself yourselves
"""

FUNCTION_WORDS = frozenset(_FUNCTION_WORDS.split())

_FILLER = """
accept accepted accepts actual actually add added adding additional additionally adds allow allowed
allowing allows alternative alternatively always amount amounts appear appears appended applied applies
apply appropriate approximate arbitrary area areas arg args argument arguments aspect aspects assume
assumed assumes attribute attributes automatically available avoid bar based basis baz began behavior
behaviour better call called caller calling calls case cases cause caused causes century change changed
changes check checked checking checks class classes code common compared compute computed computes
computing conduct conducted consider considered considers consist consisting consists contain contained
containing contains continue continued continues continuing contribute contributed convenience convert
converted converts correct correctly corresponds create created creates creating current default defaults
define defined defines defining definition depend depending depends deprecated describe described
describes description desired detail detailed details determine determined determines directory distinct
doc docs docstring documentation documented easy effect effort efforts empty ensure ensures entire equal
equals equivalent error errors essentially establish established establishes establishing estimated
example examples exist existing exists expect expected explicit explicitly extend extended extends
extensive extra fact fail fails false field fields final finally fix fixed focus focused follow foo form
formed forms function functions gain gained general get group groups guess hand handle handled handles
handling held help helped helper helping helps hold holds identical ignore ignored implement
implementation implementations implemented implements implicit important increase increased increases
increasing indicate indicated indicates indicating info information initial initially input inputs inside
instance instances int intended interface intern internal internally invalid involve involved involves
involving issue issues item items join joined key keyword keywords known kwargs lack latest leading leave
leaves led left length level limit limited limits line lines list lists literal located location maybe
mean meaning means meet meets member members mention mentioned method methods missing mode module modules
move moved multiple name named names necessary needed notation note noted notes notice null number
numbers numerous object objects obtain obtained occur occurred occurs offer offered omitted open operate
operation operations option optional optionally options order original output outputs overridden override
overview package packages param parameter parameters part parts pass passed passes passing perform
performed performing performs place places play played point points population-based possible power
prefer preferred present prevent prior process produce produced produces producing proper properly
property provide provided provides providing purpose purposes raise raised raises range reach reached
really reason receive received recent reduce reduced refer reference references referred refers remain
remained remaining remains remove removed removes replace replaced replaces represent representation
representations represented representing represents request require required requires respect result
resulting results return returned returning returns right role rule rules run running runs say seek
seeking self sense separate sequence serve served serves share shorthand show shown shows side
significant simple single situation size slightly somebody someone special specific specifically
specified specifies specify specifying standard state status step steps store stored str string strong
structure stuff subject subset succeed suitable supplied supply support supported supports sure table
take takes task term terms test tested tests thank thanks title todo top true turn type types unchanged
unique unknown unspecified update updated usage user users usual valid value values variable variables
various versa version versions vice view want warn warning whichever whose wish world wrap wrapped
wrapper write writes written wrong yield yields zero zeros
"""

FILLER = frozenset(_FILLER.split())

_WEAK_WORDS = """
action actions active adopted adopting adopts area argument arguments attribute attributes body center
central change class classes code command common component components condition conditions connection
copy countries country data default development direct directory documentation domain domains element
elements entries entry error errors expression federal federation field fields file foreign form function
functions general global group groups history individual information input interface international issue
item items key length level limit line list lists local method methods module name national number
numbers object objects official open operation operations option order output package page parameter
participates participating people peoples place point points power process product products program
property range reference regional representation request resource resources role rule rules separate
sequence service services set site sites size source sources standard state status string structure
support system systems table task term terms test title total type types user users value variable
variables version view world zero
"""

WEAK_WORDS = frozenset(_WEAK_WORDS.split())
"""Words that say nothing alone and are a fine *part* of a longer tag."""
