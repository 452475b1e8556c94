// Two ends in Go, linked statically, that say which addresses they see and check every byte.
//
//	ends server ADDRESS:PORT             prints "port N"; then "accepted PEER LOCAL" for each
//	                                     connection, says "hello" first and echoes until the end
//	ends client ADDRESS:PORT BYTES       prints "connected PEER LOCAL", sends so many bytes, half
//	                                     closes, checks what comes back, prints "checked BYTES"
//	ends client ADDRESS:PORT BYTES SLOW  the same, but reads nothing for SLOW milliseconds
//	ends client ADDRESS:PORT ROUNDS ping one byte there and back, again and again; prints "round N"
package main

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
	"time"
)

const greeting = "hello"

func serve(address string) error {
	listener, err := net.Listen("tcp", address)
	if err != nil {
		return err
	}
	fmt.Printf("port %d\n", listener.Addr().(*net.TCPAddr).Port)
	for {
		connection, err := listener.Accept()
		if err != nil {
			return err
		}
		fmt.Printf("accepted %v %v\n", connection.RemoteAddr(), connection.LocalAddr())
		go func() {
			defer connection.Close()
			if _, err := io.WriteString(connection, greeting); err == nil {
				io.Copy(connection, struct{ io.Reader }{connection})
			}
		}()
	}
}

func ping(connection net.Conn, rounds int) error {
	one := make([]byte, 1)
	for round := 0; round < rounds; round++ {
		one[0] = byte(round)
		if _, err := connection.Write(one); err != nil {
			return err
		}
		if _, err := io.ReadFull(connection, one); err != nil {
			return err
		}
		if one[0] != byte(round) {
			return fmt.Errorf("round %d: another byte came back", round)
		}
		fmt.Printf("round %d\n", round)
		time.Sleep(time.Millisecond)
	}
	return nil
}

func talk(address string, count int, rest []string) error {
	connection, err := net.Dial("tcp", address)
	if err != nil {
		return err
	}
	fmt.Printf("connected %v %v\n", connection.RemoteAddr(), connection.LocalAddr())
	first := make([]byte, len(greeting))
	if _, err := io.ReadFull(connection, first); err != nil {
		return err
	}
	if string(first) != greeting {
		return fmt.Errorf("it said %q", first)
	}
	if len(rest) > 0 && rest[0] == "ping" {
		return ping(connection, count)
	}
	sent := make([]byte, count)
	for at := range sent {
		sent[at] = byte(at*7 + at>>8 + at>>16)
	}
	failed := make(chan error, 1)
	go func() {
		_, err := connection.Write(sent)
		if err == nil {
			err = connection.(*net.TCPConn).CloseWrite()
		}
		failed <- err
	}()
	if len(rest) > 0 {
		slow, err := strconv.Atoi(rest[0])
		if err != nil {
			return err
		}
		time.Sleep(time.Duration(slow) * time.Millisecond)
	}
	received, err := io.ReadAll(connection)
	if err != nil {
		return err
	}
	if err := <-failed; err != nil {
		return err
	}
	if !bytes.Equal(received, sent) {
		return fmt.Errorf("%d bytes came back of %d, or others", len(received), len(sent))
	}
	fmt.Printf("checked %d\n", len(received))
	return nil
}

func main() {
	var err error
	switch arguments := os.Args[1:]; {
	case len(arguments) == 2 && arguments[0] == "server":
		err = serve(arguments[1])
	case len(arguments) >= 3 && arguments[0] == "client":
		var count int
		if count, err = strconv.Atoi(arguments[2]); err == nil {
			err = talk(arguments[1], count, arguments[3:])
		}
	default:
		err = fmt.Errorf("ends server ADDRESS or ends client ADDRESS COUNT")
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
