// Cards and documents lie in files of a few dozen; each is loaded once, when it is first needed.

const shards = new Map();
const arrivals = new Map();

function addShard(name, number, entries) { // called by the files themselves
  arrivals.get(`${name}/${number}`)?.(entries);
}

function shard(name, number) {
  const key = `${name}/${number}`;
  if (!shards.has(key)) {
    shards.set(key, new Promise((resolve, reject) => {
      arrivals.set(key, resolve);
      const file = `${name}/${String(number).padStart(5, "0")}.js`;
      const fail = () => { shards.delete(key); reject(new Error(`${file} cannot be read; keep the page's folder whole`)); };
      document.head.append(make("script", { src: file, onerror: fail }));
    }));
  }
  return shards.get(key);
}

async function entryOf(name, place) {
  const size = data.shards[name];
  return (await shard(name, Math.floor(place / size)))[place % size];
}
