// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
)

// The contenders.
const (
	direct       = "direct"
	remoteDialer = "remotedialer"
	drover       = "drover"
)

var (
	all     = []string{direct, remoteDialer, drover}
	tunnels = []string{remoteDialer, drover}
)

// task is the data that a process reads from its standard input.
type task struct {
	Contender string
	Measure   string
	Quick     bool
	Hub       address // for an agent
	Backend   address // for an agent
	Tunnels   int     // for an agent: how many it opens
	Delay     bool    // for an agent, and a backend: a link of 50 ms in front
}

// address is the address on which a process listens, and its certificate.
type address struct {
	Addr string
	Cert []byte // PEM
}

// child is a process that this one has started. It ends when its standard input is closed, so it also ends when this
// process is killed.
type child struct {
	cmd    *exec.Cmd
	input  io.Closer
	output *bufio.Reader
}

// start runs this program in another role.
func start(role string, t task) (*child, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("find this program: %w", err)
	}
	cmd := exec.Command(self, "-role", role)
	cmd.Stderr = os.Stderr
	input, err := cmd.StdinPipe()
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", role, err)
	}
	output, err := cmd.StdoutPipe()
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", role, err)
	}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", role, err)
	}
	if err := json.NewEncoder(input).Encode(t); err != nil {
		return nil, fmt.Errorf("send %s its task: %w", role, err)
	}
	return &child{cmd: cmd, input: input, output: bufio.NewReader(output)}, nil
}

// address waits until the child is listening, and returns its address.
func (c *child) address() (address, error) {
	var a address
	line, err := c.output.ReadBytes('\n')
	if err != nil {
		return a, fmt.Errorf("wait for a child: %w", err)
	}
	if err := json.Unmarshal(line, &a); err != nil {
		return a, fmt.Errorf("read a child's address: %w", err)
	}
	return a, nil
}

// stop ends the child, even if it was suspended with a signal.
func (c *child) stop() {
	_ = c.input.Close()
	_ = c.cmd.Process.Kill()
	_ = c.cmd.Wait()
}

// readTask reads the task of this process, and returns a channel that is closed when the process should end.
func readTask() (task, <-chan struct{}, error) {
	var t task
	input := bufio.NewReader(os.Stdin)
	line, err := input.ReadBytes('\n')
	if err != nil {
		return t, nil, fmt.Errorf("read task: %w", err)
	}
	if err := json.Unmarshal(line, &t); err != nil {
		return t, nil, fmt.Errorf("read task: %w", err)
	}
	ended := make(chan struct{})
	go func() {
		_, _ = io.Copy(io.Discard, input)
		close(ended)
	}()
	return t, ended, nil
}

// announce reports the address of this process to the parent.
func announce(a address) error {
	return json.NewEncoder(os.Stdout).Encode(a)
}
