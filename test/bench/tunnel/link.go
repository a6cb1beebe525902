// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"net"
	"time"
)

const (
	linkDelay  = 25 * time.Millisecond // each way
	linkBuffer = 4096                  // pieces of at most 32 KiB under way, each way
)

// delayed adds a link with a round-trip time of 50 ms in front of an address, and returns the address of its near end.
// The delay also applies to the handshakes of TLS and HTTP and, by waiting before dialing, of TCP.
func delayed(target string) (string, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", fmt.Errorf("listen: %w", err)
	}
	go func() {
		for {
			near, err := listener.Accept()
			if err != nil {
				return
			}
			go func() {
				time.Sleep(2 * linkDelay) // the handshake of TCP
				far, err := net.Dial("tcp", target)
				if err != nil {
					_ = near.Close()
					return
				}
				go carry(far, near)
				carry(near, far)
			}()
		}
	}()
	return listener.Addr().String(), nil
}

// piece contains the bytes of one read, and the time at which they arrive.
type piece struct {
	bytes []byte
	due   time.Time
}

// carry copies one direction, and delays every byte.
func carry(to, from net.Conn) {
	underWay := make(chan piece, linkBuffer)
	go func() {
		defer close(underWay)
		for {
			buffer := make([]byte, 32<<10)
			n, err := from.Read(buffer)
			if n > 0 {
				underWay <- piece{bytes: buffer[:n], due: time.Now().Add(linkDelay)}
			}
			if err != nil {
				return
			}
		}
	}()
	for p := range underWay {
		time.Sleep(time.Until(p.due))
		if _, err := to.Write(p.bytes); err != nil {
			break
		}
	}
	_ = to.Close()
	_ = from.Close()
	for range underWay { // lets the reader end
	}
}
