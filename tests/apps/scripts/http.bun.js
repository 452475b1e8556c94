// An HTTP server by Bun.serve that sends back what it gets, and a client of one connection, which stays until it is told to end.
const REQUESTS = 2000;

function serve() {
  const server = Bun.serve({
    hostname: '127.0.0.1',
    port: 0,
    idleTimeout: 255,
    async fetch(request) {
      if (request.method === 'GET') return new Response(new URL(request.url).pathname + '\n');
      return new Response(await request.bytes());
    },
  });
  console.log('port ' + server.port);
}

function message(i) {
  const bytes = Buffer.alloc(1 + ((i * 37) % 5000));
  for (let at = 0; at < bytes.length; at++) bytes[at] = i + at * 7;
  return bytes;
}

async function talk(port) {
  for (let i = 0; i < REQUESTS; i++) {
    const sent = message(i);
    const answer = await fetch(`http://127.0.0.1:${port}/`, { method: 'POST', body: sent });
    if (answer.status !== 200) throw new Error(`request ${i}: status ${answer.status}`);
    if (!sent.equals(Buffer.from(await answer.arrayBuffer()))) throw new Error(`answer ${i} differs`);
  }
  console.log(`${REQUESTS} answers`);
  setInterval(() => {}, 1000);
}

process.on('SIGTERM', () => process.exit(0));
if (process.argv[2] === 'server') serve();
else await talk(Number(process.argv[3]));
