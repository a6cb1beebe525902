// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"strconv"
	"sync"
)

// state is the data that one run stores for the next. It contains the token of the user demo.
type state struct {
	// These ports on 127.0.0.1 stay the same, so that kubeconfigs and agents remain valid.
	HubPort, AgentPort, HubAgentPort int
	// Nodes is realNodes or simulatedNodes.
	Nodes string
	// DemoToken is the token with which the user demo authenticates to the hub.
	DemoToken string
	// StartedFrom maps the name of each plane or program to the digest of the files and options that it was started
	// from.
	StartedFrom map[string]string

	path string
	mu   sync.Mutex // guards StartedFrom and the file, because tasks run in parallel with the steps
}

// loadState reads the state, or creates it for a first run.
func loadState(path string) (*state, error) {
	s := &state{path: path, DemoToken: rand.Text(), StartedFrom: map[string]string{}}
	raw, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return s, s.save()
	}
	if err == nil {
		err = json.Unmarshal(raw, s)
	}
	if err != nil {
		return nil, fmt.Errorf("read state %s: %w: run \"make demo-down\" to start afresh", path, err)
	}
	return s, nil
}

func (s *state) save() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.write()
}

func (s *state) write() error {
	raw, err := json.MarshalIndent(s, "", "  ")
	if err != nil {
		return fmt.Errorf("write state: %w", err)
	}
	return writeFile(s.path, raw)
}

// setStarted records the digest that a plane or program was started from. It must be called when the plane or program
// is healthy.
func (s *state) setStarted(name, digest string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.StartedFrom[name] = digest
	return s.write()
}

// startedFrom returns the digest that a plane or program was started from, or "" if it has not been started.
func (s *state) startedFrom(name string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.StartedFrom[name]
}

// keepPort leaves *port unchanged if it is free or if the program itself listens on it. Otherwise, it sets another
// port.
func (s *state) keepPort(port *int, running bool) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if running && *port != 0 {
		return nil
	}
	free, err := freePort(*port)
	if err != nil || free == *port {
		return err
	}
	*port = free
	return s.write()
}

// freePort returns the preferred port if it is free. Otherwise, it returns any free port.
func freePort(preferred int) (int, error) {
	listener, err := net.Listen("tcp", address(preferred))
	if err != nil && preferred != 0 {
		listener, err = net.Listen("tcp", address(0))
	}
	if err != nil {
		return 0, fmt.Errorf("find a free port: %w", err)
	}
	defer listener.Close()
	_, port, err := net.SplitHostPort(listener.Addr().String())
	if err != nil {
		return 0, fmt.Errorf("find a free port: %w", err)
	}
	return strconv.Atoi(port)
}

func address(port int) string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(port)) }
