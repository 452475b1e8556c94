# An echo server and its client, both of which wait by select with four arguments. With a number,
# the descriptors of their sockets are above that number.
use strict;
use warnings;
use Socket;
use Fcntl;

use constant ROUNDS => 2000;

my ($role, $above, $port) = @ARGV;
my @fill;
while ($above) {
    open my $file, '<', '/dev/null' or die "open: $!";
    push @fill, $file;
    last if fileno $file > $above;
}
$| = 1;
# Sleeps until the socket can be read, or written; the other sets are as they should be then.
sub await {
    my ($socket, $to_write) = @_;
    my ($read, $write, $except) = ('', '', '');
    vec($to_write ? $write : $read, fileno $socket, 1) = 1;
    vec($except, fileno $socket, 1) = 1;
    my ($found) = select $read, $write, $except, 60;
    die "select found $found sockets" unless $found == 1;
    die 'select marked another set' unless vec($to_write ? $write : $read, fileno $socket, 1);
    die 'select reported an exception' if vec $except, fileno $socket, 1;
}

sub new_socket {
    socket my $socket, PF_INET, SOCK_STREAM, 0 or die "socket: $!";
    die 'the descriptor is ' . fileno $socket if $above && fileno($socket) <= $above;
    return $socket;
}

sub without_blocking {
    my ($socket) = @_;
    fcntl $socket, F_SETFL, fcntl($socket, F_GETFL, 0) | O_NONBLOCK or die "fcntl: $!";
}

sub send_all {
    my ($socket, $bytes) = @_;
    while (length $bytes) {
        my $sent = syswrite $socket, $bytes;
        if (defined $sent) { substr $bytes, 0, $sent, '' }
        elsif ($!{EAGAIN}) { await($socket, 1) }
        else               { die "write: $!" }
    }
}

# At most so many bytes; none at the end.
sub receive {
    my ($socket, $size) = @_;
    await($socket, 0);
    my $got = sysread $socket, my ($bytes), $size;
    die "read: $!" unless defined $got;
    return $bytes;
}

if ($role eq 'server') {
    my $listener = new_socket();
    bind $listener, sockaddr_in(0, INADDR_LOOPBACK) or die "bind: $!";
    listen $listener, 4 or die "listen: $!";
    print 'port ', (sockaddr_in getsockname $listener)[0], "\n";
    await($listener, 0);
    accept my $socket, $listener or die "accept: $!";
    without_blocking($socket);
    while (length(my $bytes = receive($socket, 65536))) { send_all($socket, $bytes) }
}
else {
    my $socket = new_socket();
    connect $socket, sockaddr_in($port, INADDR_LOOPBACK) or die "connect: $!";
    without_blocking($socket);
    my $sum = 0;
    for my $round (0 .. ROUNDS - 1) {
        my $sent = join '', map { chr(($round + $_ * 7) & 255) } 0 .. $round * 37 % 1000;
        send_all($socket, $sent);
        my $answer = '';
        while (length $answer < length $sent) {
            my $bytes = receive($socket, length($sent) - length $answer);
            die "the connection ended in round $round" unless length $bytes;
            $answer .= $bytes;
        }
        die "round $round: the answer differs" unless $answer eq $sent;
        $sum = ($sum * 31 + unpack '%32C*', $answer) % 1_000_000_007;
    }
    print ROUNDS, " rounds, sum $sum\n";
}
