// A program with a known cause of shootdowns, for `cargo xtask soak culprits`: it writes a large
// string for each request, beside a thread that computes. With the argument `changed`, it makes a
// buffer of the string once. It needs CPUs 0 and 1, and `taskset`.
'use strict';
const { Worker, isMainThread, workerData } = require('node:worker_threads');
const { spawnSync } = require('node:child_process');
const { openSync, readlinkSync, writeSync } = require('node:fs');

const REQUESTS = 300;
// More than any threshold from which the C library maps memory.
const ANSWER_BYTES = 35 << 20;

// Node has no call for this.
function pin(cpu) {
  const thread = readlinkSync('/proc/thread-self').split('/').pop();
  if (spawnSync('taskset', ['-cp', String(cpu), thread]).status !== 0) process.exit(2);
}

function compute(state) {
  pin(1);
  Atomics.store(state, 0, 1);
  for (let steps = 0; Atomics.load(state, 1) === 0; steps++) {}
}

// Node copies a string into memory of its own to write it, and frees the memory.
function send(file, answer) {
  writeSync(file, answer);
}

function serve(changed) {
  const file = openSync('/dev/null', 'w');
  const text = 'answer '.repeat(ANSWER_BYTES / 7);
  const answer = changed ? Buffer.from(text) : text;
  for (let request = 0; request < REQUESTS; request++) send(file, answer);
}

function main() {
  const state = new Int32Array(new SharedArrayBuffer(8));
  const worker = new Worker(__filename, { workerData: state });
  worker.once('error', (error) => { throw error; });
  const wait = () => {
    if (Atomics.load(state, 0) === 0) return setTimeout(wait, 1);
    pin(0);
    serve(process.argv[3] === 'changed');
    Atomics.store(state, 1, 1);
  };
  wait();
}

if (isMainThread) main();
else compute(workerData);
