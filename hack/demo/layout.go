// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
)

// Names of the programs and planes, for use in file names and messages.
const (
	hub        = "hub"
	member     = "member"
	manager    = "manager"
	agent      = "agent"
	hubAgent   = "agent-hub" // the hub is a member of itself; this is its agent
	nodes      = "nodes"
	pod        = "pod"
	proxy      = "proxy"
	completion = "kubectl_complete-drover" // kubectl runs it to complete the plugin's commands
	plugin     = "kubectl-drover"          // the plugin's file name, by which kubectl finds it
)

type layout struct {
	// root is the root of the source tree.
	root string
}

func (l layout) dir() string                   { return filepath.Join(l.root, ".demo") }
func (l layout) file(name string) string       { return filepath.Join(l.dir(), name) }
func (l layout) bin(name string) string        { return filepath.Join(l.dir(), "bin", name) }
func (l layout) lab() string                   { return l.file("lab") } // short, because it contains sockets
func (l layout) pids() string                  { return filepath.Join(l.dir(), "pids") }
func (l layout) logs() string                  { return filepath.Join(l.dir(), "logs") }
func (l layout) log(name string) string        { return filepath.Join(l.logs(), name+".log") }
func (l layout) kubeconfig(name string) string { return l.file(name + ".kubeconfig") }
func (l layout) password(user string) string   { return l.file(user + ".password") }
func (l layout) source(path string) string     { return filepath.Join(l.root, filepath.FromSlash(path)) }

// short returns a path relative to the root, if possible.
func (l layout) short(path string) string {
	if relative, err := filepath.Rel(l.root, path); err == nil {
		return relative
	}
	return path
}

// lock creates the demo's folder and locks it against other runs until the returned function is called.
func (l layout) lock() (func(), error) {
	if err := os.MkdirAll(l.dir(), 0o700); err != nil {
		return nil, fmt.Errorf("make folder: %w", err)
	}
	file, err := os.OpenFile(l.file("lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("lock %s: %w", l.short(l.dir()), err)
	}
	err = syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	if errors.Is(err, syscall.EWOULDBLOCK) {
		err = errors.New("another run uses this folder: wait until it ends, or interrupt it")
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("lock %s: %w", l.short(l.dir()), err), file.Close())
	}
	return func() { _ = file.Close() }, nil
}

// writeFile replaces a file atomically. Only the owner can read the file.
func writeFile(path string, content []byte) error {
	draft := path + ".new"
	err := os.WriteFile(draft, content, 0o600)
	if err == nil {
		err = os.Rename(draft, path)
	}
	if err != nil {
		return fmt.Errorf("write file: %w", err)
	}
	return nil
}
