// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"os"
	"os/exec"
	"strings"
	"sync"
)

// hops is the number of processes between a user and a member's API server: the manager and the agent.
const hops = 2

// copyTo copies bytes between the connections that it accepts and the given address. It first prints its own address.
// It does not process TLS or HTTP, so two copies of it are the lower bound for a path through two processes on this
// machine.
func copyTo(ctx context.Context, out io.Writer, address string) error {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return fmt.Errorf("listen for connections to %s: %w", address, err)
	}
	context.AfterFunc(ctx, func() { _ = listener.Close() })
	fmt.Fprintln(out, listener.Addr())
	for {
		in, err := listener.Accept()
		if err != nil {
			return nil // it was closed
		}
		go func() {
			defer in.Close()
			target, err := net.Dial("tcp", address)
			if err != nil {
				return
			}
			defer target.Close()
			var back sync.WaitGroup
			defer back.Wait()
			back.Go(func() {
				_, _ = io.Copy(in, target)
				_ = in.Close()
			})
			_, _ = io.Copy(target, in)
			_ = target.Close()
		}()
	}
}

// startCopying starts a chain of processes in front of the member's API server, and returns the URL of the first one.
func (p *processes) startCopying() (string, error) {
	member, err := url.Parse(p.member.URL())
	if err != nil {
		return "", err
	}
	self, err := os.Executable()
	if err != nil {
		return "", err
	}
	for range hops {
		process := exec.Command(self, "-copy-to", member.Host)
		process.Stderr = os.Stderr
		said, err := process.StdoutPipe()
		if err != nil {
			return "", err
		}
		if err := process.Start(); err != nil {
			return "", fmt.Errorf("start a process that copies: %w", err)
		}
		p.copying = append(p.copying, process)
		line, err := bufio.NewReader(said).ReadString('\n')
		if err != nil {
			return "", fmt.Errorf("read the address of a process that copies: %w", err)
		}
		member.Host = strings.TrimSpace(line)
	}
	return member.String(), nil
}

func (p *processes) stopCopying() error {
	var errs []error
	for _, process := range p.copying {
		errs = append(errs, process.Process.Kill())
		_ = process.Wait() // it was killed
	}
	return errors.Join(errs...)
}
