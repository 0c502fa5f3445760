// Allocates strings and arrays and keeps some of them, so that the collector's threads are busy.
const kept = [];
for (let round = 0; round < 60; round++) {
  const objects = [];
  for (let i = 0; i < 20000; i++) {
    objects.push({ key: `${round}.${i}`, values: new Array(8).fill(i) });
  }
  kept.push(objects.slice(0, 2000));
  if (kept.length > 10) kept.shift();
}
console.log(kept.length);
