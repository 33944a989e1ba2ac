"""From conversations to a model that answers, with the commands a user gives; and what of its concepts stays."""

import json
from dataclasses import dataclass
from pathlib import Path

import pytest

import vitrail
from tests.text.conftest import KINDS
from tests.train.bare import short_run, write_bare
from vitrail.cli.chatting import Conversation
from vitrail.cli.main import main
from vitrail.generate import Sampling
from vitrail.model import ModelConfig, init_model, load_config, save_model
from vitrail.packed import PackedCorpus, PackSettings, pack_conversations
from vitrail.text import load_tokenizer
from vitrail.train import train_model
from vitrail.train.start import answering

CHATS = {
    "cooking": "oven and butter",
    "sailing": "boat near anchor",
    "chess": "bishop under pawn",
    "bread": "the dough",
    "harbour": "many sail",
    "knight": "few rook",
    "flour": "some butter",
    "tide": "this boat",
}
LEARNT = {"cooking": "oven and butter", "sailing": "boat near anchor", "bread": "the dough"}
CONFIGS = Path(__file__).parents[2] / "configs"


def command(*words: str | Path) -> None:
    with pytest.raises(SystemExit) as done:
        main([str(word) for word in words])
    assert not done.value.code, words


@dataclass(frozen=True)
class World:
    base: Path
    chats: Path
    packed: Path
    text: Path
    answering: Path


@pytest.fixture(scope="module")
def world(packed_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> World:
    """A base model, eight conversations, and a model that learnt them by heart."""
    root = tmp_path_factory.mktemp("finetune")
    shape = {"width": 32, "num_layers": 2, "num_heads": 2, "block": 8, "discovered_rank": 4, "intermediate_size": 64}
    train_model(packed_dir, root / "base", short_run(10, model=shape))
    chats = root / "chats.jsonl"
    chats.write_text("".join(json.dumps({"prompt": a, "response": b}) + "\n" for a, b in CHATS.items()))
    pack = ("--tokenizer", root / "base", "--length", "32", "--documents", "one")
    command("pack", chats, "--out", root / "packed", *pack)
    rates = [f"--optim.{name}_rate=0.01" for name in ("matrix", "embedding", "head", "norm")]
    run = ["--batch_size", "8", "--total_tokens", str(200 * 8 * 32), "--precision", "fp32", "--compose", "{}", *rates]
    place = ("--packed", root / "packed", "--init-from", root / "base", "--out", root / "sft")
    command("train", CONFIGS / "small/sft.yaml", *place, *run, "--optim.matrices", "adamw")
    return World(root / "base", chats, root / "packed", packed_dir, root / "sft")


def test_it_answers_and_stops(world: World) -> None:
    """Greedy, in the conversation of `vitrail chat`, from Python, and behind a plain prompt."""
    model = vitrail.load(world.answering)
    assert model.network.config.instruct
    for asked, answer in LEARNT.items():
        chat = Conversation(model, Sampling(max_new_tokens=16, allowed_specials=("eoc", "eos")))
        chat.turns.append({"role": "user", "text": asked})
        prompt, _ = chat.prompt()
        assert chat.answer(prompt, lambda _commit: None).text == answer
        assert model.generate(f"{asked}\n\n", max_new_tokens=16).text == answer


def test_its_base_does_not(world: World) -> None:
    model = vitrail.load(world.base)
    assert not model.network.config.instruct
    assert [model.generate(f"{asked}\n\n", max_new_tokens=16).text for asked in LEARNT] != list(LEARNT.values())


def test_the_command_answers(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    command("generate", "sailing\n\n", "--model", world.answering, "--max-new-tokens", "16", "--json")
    assert json.loads(capsys.readouterr().out)["text"] == "boat near anchor"


def test_explanations_and_steering_stay(world: World) -> None:
    """The library came along through the conversations, and the heads still read and write what they are named for."""
    model = vitrail.load(world.answering)
    answer = model.generate("sailing\n\n", max_new_tokens=8)
    why = answer.explain()
    assert why.certificate.passed
    names = {card.name for card in model.library.cards if card.head == "known"}
    assert names == {"cooking", "sailing", "chess"}
    # Strengths are those of these weights: calibrated anew.
    model.calibrate(PackedCorpus.open(world.text)).save(world.answering)
    steered = vitrail.load(world.answering)
    assert steered.generate("sailing\n\n", steer="chess=+3.0", max_new_tokens=8).token_ids != answer.token_ids


def test_adapters_learn_answers_too(world: World, tmp_path: Path) -> None:
    """The shipped configuration, for a few steps: the heads of the base model stay to the last bit."""
    run = ("--total_tokens", str(5 * 4 * 32), "--precision", "fp32", "--lora.rank", "4")
    place = ("--packed", world.packed, "--init-from", world.base, "--out", tmp_path / "lora")
    command("train", CONFIGS / "lora.yaml", *place, *run)
    before, after = vitrail.load(world.base).network, vitrail.load(tmp_path / "lora").network
    assert after.config == load_config(world.answering)
    for head, adapted in ((before.known_head, after.known_head), (before.unknown_head, after.unknown_head)):
        for (name, old), (_, new) in zip(head.named_parameters(), adapted.named_parameters(), strict=True):
            assert old.equal(new), name
    lines = [json.loads(line) for line in (tmp_path / "lora/log.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines if "batch" in line] == list(range(5))


def test_a_bare_checkpoint_with_a_template_of_its_own(tmp_path: Path) -> None:
    """The end of its answers is that of its template, and the stored configuration says so."""
    tokenizer = KINDS["byte-level"](tmp_path / "tokenizer")
    bare = tmp_path / "bare"
    tokenizer.save(bare / "tokenizer")
    controls = {f"{name}_id": getattr(tokenizer.controls, name) for name in ("pad", "bos", "eos", "eoc", "mask")}
    values = {"width": 16, "num_layers": 1, "num_heads": 2, "num_kv_heads": 1, "max_length": 64, "block": 8}
    concepts = {"num_concepts": 3, "num_discovered": 5, "discovered_rank": 2}
    config = ModelConfig.parse({**values, **concepts, **controls, "vocab_size": tokenizer.vocab_size})
    save_model(init_model(config, 0), bare)
    chats = tmp_path / "chats.jsonl"
    chats.write_text("".join(json.dumps({"prompt": a, "response": b}) + "\n" for a, b in CHATS.items()))
    loaded = load_tokenizer(bare, config.controls, config.vocab_size)
    assert loaded is not None
    pack_conversations(chats, bare, loaded, 3, tmp_path / "packed", PackSettings(length=64))
    packed = PackedCorpus.open(tmp_path / "packed")
    end = answering(config, packed).eot_id
    assert end is not None
    assert loaded.token_name(end) == b"<|im_end|>"

    train_model(packed.path, tmp_path / "sft", short_run(1), init_from=bare)
    model = vitrail.load(tmp_path / "sft")
    assert (model.network.config.instruct, model.network.config.eot_id) == (True, end)
    said = [{"role": "user", "content": "bread"}]
    assert model.tokenizer.chat_ids(said) == loaded.chat_ids(said)
    assert model.library.card("known", 2).name == "#2"
    # And again: the end mark in the configuration does not make it another model's corpus.
    pack_conversations(chats, tmp_path / "sft", model.tokenizer, 3, tmp_path / "again", PackSettings(length=64))
    train_model(tmp_path / "again", tmp_path / "second", short_run(1), init_from=tmp_path / "sft")


def test_texts_leave_the_configuration_alone(packed_dir: Path, tmp_path: Path) -> None:
    packed = PackedCorpus.open(packed_dir)
    config = load_config(write_bare(tmp_path / "bare", packed))
    assert answering(config, packed) is config
