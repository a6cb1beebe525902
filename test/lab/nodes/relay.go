// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package nodes

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"runtime"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

const (
	bridge = "lab0"

	dialLimit = 10 * time.Second
	// machineNetwork is the file descriptor of the machine's network namespace. The relay inherits it.
	machineNetwork = 3
)

// relay is the process whose network namespace contains the bridge. The bridge exists as long as the relay runs. The
// relay forwards connections between this namespace and the machine's loopback interface, so that nodes and pods can
// reach the API servers and the ports in the lab file, and API servers can reach nodes and pods.
type relay struct {
	// address is the bridge's address. ports are the ports on the machine's loopback interface that can be reached on
	// the bridge. socket is the path of the Unix socket through which API servers reach the relay.
	address string
	ports   []string
	socket  string
}

// runRelay creates the bridge and forwards connections until an error occurs. Its arguments are the bridge's address
// with its prefix length, the path of the socket, and the ports on the machine's loopback interface. The ports are
// the API servers' ports and the lab file's MachinePorts.
func runRelay(args []string) error {
	if len(args) < 2 {
		return errors.New("want arguments for the relay: ADDRESS/LENGTH, SOCKET and PORTs")
	}
	address, _, _ := strings.Cut(args[0], "/")
	r := relay{address: address, socket: args[1], ports: args[2:]}
	for _, step := range [][]string{
		{"ip", "link", "set", "lo", "up"},
		{"ip", "link", "add", bridge, "type", "bridge"},
		{"ip", "address", "add", args[0], "dev", bridge},
		{"ip", "link", "set", bridge, "up"},
	} {
		if err := command(step[0], step[1:]...); err != nil {
			return err
		}
	}
	return r.serve()
}

func (r relay) serve() error {
	ended := make(chan error)
	for _, port := range r.ports {
		listener, err := net.Listen("tcp4", net.JoinHostPort(r.address, port))
		if err != nil {
			return fmt.Errorf("relay: %w", err)
		}
		go func() { ended <- forward(listener, net.JoinHostPort("127.0.0.1", port)) }()
	}
	if err := os.Remove(r.socket); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("relay: %w", err)
	}
	listener, err := net.Listen("unix", r.socket)
	if err != nil {
		return fmt.Errorf("relay: %w", err)
	}
	go func() { ended <- serveConnect(listener) }()
	return <-ended
}

// forward forwards each connection to an address of the machine.
func forward(listener net.Listener, address string) error {
	for {
		conn, err := listener.Accept()
		if err != nil {
			return fmt.Errorf("relay: %w", err)
		}
		go func() {
			defer conn.Close()
			if far, err := dialFromMachine(address); err == nil {
				join(conn, conn, far)
			}
		}()
	}
}

// dialFromMachine dials from the machine's network namespace. A socket stays in the namespace of the thread that
// created it.
func dialFromMachine(address string) (net.Conn, error) {
	runtime.LockOSThread() // if the thread's namespace cannot be restored, the thread ends with the goroutine
	own, err := os.Open("/proc/thread-self/ns/net")
	if err != nil {
		return nil, err
	}
	defer own.Close()
	if err := setNetwork(machineNetwork); err != nil {
		return nil, err
	}
	dialer := net.Dialer{Timeout: dialLimit}
	conn, err := dialer.DialContext(context.Background(), "tcp4", address)
	if back := setNetwork(int(own.Fd())); back != nil {
		return conn, errors.Join(err, back)
	}
	runtime.UnlockOSThread()
	return conn, err
}

func setNetwork(fd int) error {
	if err := unix.Setns(fd, unix.CLONE_NEWNET); err != nil {
		return fmt.Errorf("change the network namespace: %w", err)
	}
	return nil
}

// serveConnect serves HTTP CONNECT for API servers. An API server sends one CONNECT request per connection.
func serveConnect(listener net.Listener) error {
	for {
		conn, err := listener.Accept()
		if err != nil {
			return fmt.Errorf("relay: %w", err)
		}
		go connectTo(conn)
	}
}

func connectTo(conn net.Conn) {
	defer conn.Close()
	reader := bufio.NewReader(conn)
	req, err := http.ReadRequest(reader)
	if err != nil || req.Method != http.MethodConnect {
		_, _ = io.WriteString(conn, "HTTP/1.1 400 Bad Request\r\n\r\n")
		return
	}
	far, err := net.DialTimeout("tcp", req.Host, dialLimit)
	if err != nil {
		_, _ = fmt.Fprintf(conn, "HTTP/1.1 502 Bad Gateway\r\nX-Cause: %s\r\n\r\n", strings.ReplaceAll(err.Error(), "\n", " "))
		return
	}
	if _, err := io.WriteString(conn, "HTTP/1.1 200 Connection established\r\n\r\n"); err != nil {
		_ = far.Close()
		return
	}
	join(conn, reader, far)
}

// join copies bytes in both directions until both ends are done, and closes the far end.
func join(near net.Conn, fromNear io.Reader, far net.Conn) {
	defer far.Close()
	done := make(chan struct{})
	go func() {
		defer close(done)
		_, _ = io.Copy(far, fromNear)
		closeWrite(far)
	}()
	_, _ = io.Copy(near, far)
	closeWrite(near)
	<-done
}

func closeWrite(conn net.Conn) {
	if half, ok := conn.(interface{ CloseWrite() error }); ok {
		_ = half.CloseWrite()
	}
}
