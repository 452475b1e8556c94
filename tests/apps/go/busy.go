// A client in Go, linked statically, of the server in echo.go, that does beside its connections what Go's runtime does
// to a program: collect garbage, interrupt goroutines that do not yield, start and end threads, execute programs.
//
//	busy client PORT CONNECTIONS ROUNDS
//	                             sends and checks ROUNDS messages on each connection; prints "begun" among
//	                             them, then "checked BYTES", and what it has seen of the rest and of itself
//	busy pingpong PORT CONNECTIONS ROUNDS
//	                             the same with 64 bytes and nothing beside; prints nanoseconds a round
package main

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// A connection has its lane by then, if it gets one.
const begunAt = 200

var sink atomic.Pointer[[]byte]

// Each message is memory of its own, so that there is garbage of many sizes.
func talk(port string, seed, rounds, size int) (int, error) {
	connection, err := net.Dial("tcp4", "127.0.0.1:"+port)
	if err != nil {
		return 0, err
	}
	defer connection.Close()
	total := 0
	for round := 0; round < rounds; round++ {
		length := size
		if length == 0 {
			length = 1 + (seed*131+round*37)%9000
		}
		message := make([]byte, length)
		for at := range message {
			message[at] = byte(seed + round + at*7)
		}
		if _, err := connection.Write(message); err != nil {
			return total, err
		}
		answer := make([]byte, length)
		if _, err := io.ReadFull(connection, answer); err != nil {
			return total, err
		}
		if !bytes.Equal(answer, message) {
			return total, fmt.Errorf("connection %d, message %d came back changed", seed, round)
		}
		total += length
		if seed == 0 && round == begunAt {
			fmt.Println("begun")
		}
	}
	if err := connection.(*net.TCPConn).CloseWrite(); err != nil {
		return total, err
	}
	if rest, err := io.ReadAll(connection); err != nil || len(rest) != 0 {
		return total, fmt.Errorf("after the last message: %d bytes, %v", len(rest), err)
	}
	return total, nil
}

func talkAll(port string, connections, rounds, size int) (int, error) {
	var wait sync.WaitGroup
	var total atomic.Int64
	failed := make(chan error, connections)
	for seed := 0; seed < connections; seed++ {
		wait.Add(1)
		go func() {
			defer wait.Done()
			count, err := talk(port, seed, rounds, size)
			total.Add(int64(count))
			if err != nil {
				failed <- err
			}
		}()
	}
	wait.Wait()
	select {
	case err := <-failed:
		return int(total.Load()), err
	default:
		return int(total.Load()), nil
	}
}

// A loop without a call: only a signal can interrupt it.
//
//go:noinline
func spin(until *atomic.Bool) (count uint64) {
	for !until.Load() {
		for step := 0; step < 1_000_000; step++ {
			count += uint64(step) ^ count
		}
	}
	return count
}

func beside(stop *atomic.Bool, wait *sync.WaitGroup, children *atomic.Int64) {
	begin := func(work func()) {
		wait.Add(1)
		go func() {
			defer wait.Done()
			work()
		}()
	}
	begin(func() { spin(stop) })
	begin(func() {
		for !stop.Load() {
			garbage := make([]byte, 1<<18)
			sink.Store(&garbage)
			runtime.GC()
		}
	})
	begin(func() {
		for !stop.Load() {
			// A thread that is locked when its goroutine ends does not live on.
			done := make(chan bool)
			go func() {
				runtime.LockOSThread()
				close(done)
			}()
			<-done
			time.Sleep(time.Millisecond)
		}
	})
	begin(func() {
		for {
			said, err := exec.Command("/bin/echo", "child").CombinedOutput()
			if err != nil || string(said) != "child\n" {
				fmt.Fprintf(os.Stderr, "busy: a child said %q, %v\n", said, err)
				os.Exit(1)
			}
			children.Add(1)
			if stop.Load() {
				return
			}
		}
	})
	// Signals of somebody's, beside those of the runtime's.
	heard := make(chan os.Signal, 16)
	signal.Notify(heard, syscall.SIGUSR1)
	begin(func() {
		for !stop.Load() {
			syscall.Kill(os.Getpid(), syscall.SIGUSR1)
			<-heard
			time.Sleep(time.Millisecond)
		}
	})
}

func client(port string, connections, rounds int) error {
	var stop atomic.Bool
	var wait sync.WaitGroup
	var children atomic.Int64
	beside(&stop, &wait, &children)
	total, err := talkAll(port, connections, rounds, 0)
	stop.Store(true)
	wait.Wait()
	if err != nil {
		return err
	}
	var memory runtime.MemStats
	runtime.ReadMemStats(&memory)
	fmt.Printf("checked %d\n", total)
	fmt.Printf("collected %v\n", memory.NumGC > 1)
	fmt.Printf("children %v\n", children.Load() > 0)
	own, err := os.Executable()
	if err != nil {
		return err
	}
	fmt.Printf("executable %s\n", own)
	return nil
}

func pingpong(port string, connections, rounds int) error {
	start := time.Now()
	if _, err := talkAll(port, connections, rounds, 64); err != nil {
		return err
	}
	fmt.Printf("%d ns a round\n", time.Since(start).Nanoseconds()/int64(rounds*connections))
	return nil
}

func main() {
	number := func(at int) int {
		value, err := strconv.Atoi(os.Args[at])
		if err != nil {
			fmt.Fprintln(os.Stderr, "busy:", err)
			os.Exit(1)
		}
		return value
	}
	var err error
	switch {
	case len(os.Args) == 5 && os.Args[1] == "client":
		err = client(os.Args[2], number(3), number(4))
	case len(os.Args) == 5 && os.Args[1] == "pingpong":
		err = pingpong(os.Args[2], number(3), number(4))
	default:
		err = fmt.Errorf("usage: busy client|pingpong PORT CONNECTIONS ROUNDS")
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "busy:", err)
		os.Exit(1)
	}
}
