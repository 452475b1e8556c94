<?php
// An echo server of streams, and a client that uses one connection by the stream functions and by
// the extension "sockets" in turn. PHP loads its extensions with RTLD_DEEPBIND.
const ROUNDS = 2000;

function message(int $round): string
{
    $text = '';
    for ($at = 0, $size = 1 + $round * 37 % 3000; $at < $size; $at++) {
        $text .= chr(($round + $at * 7) & 255);
    }
    return $text;
}

/** Calls until all bytes have gone or come. */
function write_all(callable $write, string $bytes): void
{
    while ($bytes !== '') {
        $written = $write($bytes);
        if (!$written) {
            exit("a write failed\n");
        }
        $bytes = substr($bytes, $written);
    }
}

function read_all(callable $read, int $size): string
{
    $bytes = '';
    while (strlen($bytes) < $size) {
        $piece = $read($size - strlen($bytes));
        if ($piece === false || $piece === '' || $piece === null) {
            exit('the connection ended after ' . strlen($bytes) . " bytes of $size\n");
        }
        $bytes .= $piece;
    }
    return $bytes;
}

function serve(): void
{
    $listener = stream_socket_server('tcp://127.0.0.1:0');
    echo 'port ', substr(strrchr(stream_socket_get_name($listener, false), ':'), 1), "\n";
    $stream = stream_socket_accept($listener, 60);
    while (($bytes = fread($stream, 8192)) !== '' && $bytes !== false) {
        write_all(fn($rest) => fwrite($stream, $rest), $bytes);
    }
}

function talk(string $port): void
{
    $stream = stream_socket_client("tcp://127.0.0.1:$port");
    // Nothing may be left in the buffer of the stream, which the extension does not read.
    stream_set_read_buffer($stream, 0);
    $socket = socket_import_stream($stream);
    $receive = function (int $size) use ($socket) {
        return socket_recv($socket, $bytes, $size, 0) ? $bytes : false;
    };
    $writes = [fn($rest) => fwrite($stream, $rest), fn($rest) => socket_send($socket, $rest, strlen($rest), 0)];
    $reads = [fn($size) => fread($stream, $size), $receive];
    $sum = hash_init('sha256');
    for ($round = 0; $round < ROUNDS; $round++) {
        $message = message($round);
        write_all($writes[$round & 1], $message);
        // The first half by one, the rest by the other.
        $half = intdiv(strlen($message), 2);
        $answer = read_all($reads[$round >> 1 & 1], $half);
        $answer .= read_all($reads[~$round >> 1 & 1], strlen($message) - $half);
        if ($answer !== $message) {
            exit("round $round: the answer differs\n");
        }
        hash_update($sum, $answer);
    }
    echo ROUNDS, ' rounds ', hash_final($sum), "\n";
}

$argv[1] === 'server' ? serve() : talk($argv[2]);
