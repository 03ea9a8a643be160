// Hooks for dredd: put what the test has prepared, and what earlier answers have told, in the place of words.
// HOOKS is a file: {"words": {word: value}, "keep": {title: {word: member}}, "left_out": [title]}.
const fs = require('fs');
const hooks = require('hooks');

const { words, keep, left_out: leftOut } = JSON.parse(fs.readFileSync(process.env.HOOKS));
const WORD = /\b[A-Z][A-Z0-9_]+\b/g;

const fill = (text, shape = (value) => value) =>
  text.replace(WORD, (word) => (Object.hasOwn(words, word) ? shape(words[word]) : word));
const inJson = (value) => JSON.stringify(String(value)).slice(1, -1);
// "group > title > …"
const titleOf = (transaction) => transaction.name.split(' > ')[2];

hooks.beforeEach((transaction, done) => {
  if (leftOut.includes(titleOf(transaction))) {
    transaction.skip = true;
    done();
    return;
  }
  const { request } = transaction;
  transaction.fullPath = fill(transaction.fullPath, encodeURIComponent);
  request.body = fill(request.body, inJson);
  for (const name of Object.keys(request.headers)) request.headers[name] = fill(request.headers[name]);
  delete request.headers['User-Agent'];
  done();
});

hooks.afterEach((transaction, done) => {
  const kept = keep[titleOf(transaction)];
  if (kept && transaction.real && transaction.real.body) {
    const answer = JSON.parse(transaction.real.body);
    for (const [word, member] of Object.entries(kept)) {
      words[word] = member.split('.').reduce((value, name) => value && value[name], answer);
    }
  }
  done();
});
