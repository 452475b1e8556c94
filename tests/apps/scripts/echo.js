// The echo server and client of echo.go for Node: same messages, same checksum.
'use strict';
const net = require('net');

function serve() {
  const server = net.createServer({ allowHalfOpen: true }, (socket) => socket.pipe(socket));
  server.listen(0, '127.0.0.1', () => console.log('port ' + server.address().port));
}

function message(i) {
  const bytes = Buffer.alloc(1 + ((i * 37) % 5000));
  for (let at = 0; at < bytes.length; at++) bytes[at] = i + at * 7;
  return bytes;
}

function talk(port) {
  let sum = 0xcbf29ce484222325n;
  let i = 0;
  let got = [];
  let gotBytes = 0;
  let expected = message(0);
  const socket = net.connect(port, '127.0.0.1', () => socket.write(expected));
  socket.on('data', (data) => {
    got.push(data);
    gotBytes += data.length;
    if (gotBytes < expected.length) return;
    const answer = Buffer.concat(got);
    if (!answer.equals(expected)) throw new Error(`message ${i} came back changed`);
    for (const byte of answer) sum = BigInt.asUintN(64, (sum ^ BigInt(byte)) * 0x100000001b3n);
    got = [];
    gotBytes = 0;
    i++;
    if (i === 2000) {
      socket.end();
      return;
    }
    expected = message(i);
    socket.write(expected);
  });
  socket.on('end', () => {
    if (i !== 2000 || gotBytes !== 0) throw new Error('the stream ended at the wrong place');
    console.log('sum ' + sum.toString(16).padStart(16, '0'));
  });
}

if (process.argv[2] === 'server') serve();
else talk(Number(process.argv[3]));
