// An echo server and client in Go, linked statically: nothing can be preloaded
// into it, so its connections stay on TCP whatever the other end is.
//
//	echo server            prints "port N", echoes every connection until killed
//	echo client PORT       sends and checks 2,000 messages, prints a checksum
package main

import (
	"fmt"
	"hash/fnv"
	"io"
	"net"
	"os"
)

func serve() error {
	listener, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		return err
	}
	fmt.Printf("port %d\n", listener.Addr().(*net.TCPAddr).Port)
	for {
		connection, err := listener.Accept()
		if err != nil {
			return err
		}
		go func() {
			defer connection.Close()
			// A plain Reader hides the descriptor from io.Copy's splice.
			io.Copy(connection, struct{ io.Reader }{connection})
		}()
	}
}

func talk(port string) error {
	connection, err := net.Dial("tcp4", "127.0.0.1:"+port)
	if err != nil {
		return err
	}
	sum := fnv.New64a()
	for i := 0; i < 2000; i++ {
		message := make([]byte, 1+i*37%5000)
		for at := range message {
			message[at] = byte(i + at*7)
		}
		if _, err := connection.Write(message); err != nil {
			return err
		}
		answer := make([]byte, len(message))
		if _, err := io.ReadFull(connection, answer); err != nil {
			return err
		}
		if string(answer) != string(message) {
			return fmt.Errorf("message %d came back changed", i)
		}
		sum.Write(answer)
	}
	if err := connection.(*net.TCPConn).CloseWrite(); err != nil {
		return err
	}
	if rest, err := io.ReadAll(connection); err != nil || len(rest) != 0 {
		return fmt.Errorf("after the last message: %d bytes, %v", len(rest), err)
	}
	fmt.Printf("sum %016x\n", sum.Sum64())
	return nil
}

func main() {
	var err error
	switch {
	case len(os.Args) == 2 && os.Args[1] == "server":
		err = serve()
	case len(os.Args) == 3 && os.Args[1] == "client":
		err = talk(os.Args[2])
	default:
		err = fmt.Errorf("usage: echo server | echo client PORT")
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "echo:", err)
		os.Exit(1)
	}
}
