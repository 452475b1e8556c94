// Connects to ADDRESS PORT, says hello, and prints the answer and what it takes for the two ends.
package main

import (
	"bufio"
	"fmt"
	"net"
	"os"
)

func main() {
	connection, err := net.Dial("tcp", net.JoinHostPort(os.Args[1], os.Args[2]))
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	fmt.Fprintln(connection, "hello")
	answer, err := bufio.NewReader(connection).ReadString('\n')
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	fmt.Print(answer)
	fmt.Println(connection.RemoteAddr())
	fmt.Println(connection.LocalAddr())
}
