// A client in Go, linked statically, of the server in echo.go, that leaves its connection to another program: its own
// file once more, executed in its place or started beside it.
//
//	exec exec PORT     is replaced
//	exec unread PORT   is replaced while an answer has not been read
//	exec child PORT    has a child that uses the connection, and then goes on itself
package main

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"strconv"
	"syscall"
)

// Enough for the connection to have its lane.
const rounds = 300

var left = []byte("left for the next one")

func check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "exec:", err)
		os.Exit(1)
	}
}

func talk(connection net.Conn, seed int) {
	for round := 0; round < rounds; round++ {
		message := bytes.Repeat([]byte{byte(seed + round)}, 1+(seed+round*37)%5000)
		_, err := connection.Write(message)
		check(err)
		expect(connection, message)
	}
}

func expect(connection net.Conn, message []byte) {
	answer := make([]byte, len(message))
	_, err := io.ReadFull(connection, answer)
	check(err)
	if !bytes.Equal(answer, message) {
		check(fmt.Errorf("a message of %d bytes came back changed", len(message)))
	}
}

func begin(how, port string) {
	connection, err := net.Dial("tcp4", "127.0.0.1:"+port)
	check(err)
	talk(connection, 1)
	// A copy of the descriptor, which closes at an exec.
	file, err := connection.(*net.TCPConn).File()
	check(err)
	own, err := os.Executable()
	check(err)
	if how == "child" {
		child := exec.Command(own, "continue", how, "3")
		child.ExtraFiles = []*os.File{file}
		child.Stdout, child.Stderr = os.Stdout, os.Stderr
		check(child.Run())
		talk(connection, 3)
		fmt.Println("the parent went on")
		return
	}
	if how == "unread" {
		_, err := connection.Write(left)
		check(err)
	}
	fd, _, number := syscall.Syscall(syscall.SYS_FCNTL, file.Fd(), syscall.F_DUPFD, 10)
	if number != 0 {
		check(number)
	}
	check(syscall.Exec(own, []string{"exec", "continue", how, strconv.Itoa(int(fd))}, os.Environ()))
}

func main() {
	if len(os.Args) == 3 {
		begin(os.Args[1], os.Args[2])
		return
	}
	fd, err := strconv.Atoi(os.Args[3])
	check(err)
	connection, err := net.FileConn(os.NewFile(uintptr(fd), "connection"))
	check(err)
	if os.Args[2] == "unread" {
		expect(connection, left)
	}
	talk(connection, 2)
	fmt.Println("the next one is done")
}
