// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"bytes"
	"crypto/rand"
	"encoding/csv"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"
)

// Options describe a control plane. The zero value is for a test: attached, in a temporary folder, without a
// controller manager.
type Options struct {
	// Name is the context in kubeconfigs and the first part of the names of log and pid files. Default "lab".
	Name string
	// Dir keeps keys, ports and data; a plane started there again has the same. It holds secrets and is made readable
	// for its owner only. Default: a temporary folder, which Stop removes.
	Dir string
	// LogDir and PIDDir receive <name>-<program>.log and .pid. Default: logs and pids in Dir.
	LogDir, PIDDir string
	// Assets are the programs. Default: what Binaries finds, with Progress.
	Assets   Assets
	Progress io.Writer
	// ControllerManager runs kube-controller-manager too. Start then waits for the ServiceAccount default/default.
	ControllerManager bool
	// Users can log in with a token.
	Users []User
	// ExtraArgs are added for a program, by its name; a flag given here wins over the lab's own.
	ExtraArgs map[string][]string
	// ExtraEnv are variables such as GOGC=200 for all programs.
	ExtraEnv []string
	// Durable makes etcd sync its writes to disk. Not done by default: it costs most of the time of a write.
	Durable bool
	// Nodes makes a plane that real nodes join: it runs a scheduler and, whatever ControllerManager says, a controller
	// manager.
	Nodes *NodeSupport
	// Detached lets the plane live on when the caller ends; StopDetached(PIDDir) ends it.
	Detached bool
}

// A NodeSupport says how a plane and its nodes reach each other. The nodes run in network namespaces of their own, and
// the API server listens on loopback only.
type NodeSupport struct {
	// Address is where nodes and pods reach the API server, at the port of its URL.
	Address string
	// EgressSocket is the path of a Unix socket that serves HTTP CONNECT. The API server reaches kubelets and webhooks
	// through it.
	EgressSocket string
}

// A User logs in with a static token.
type User struct {
	Name string
	// Token is a secret of at least 16 characters; empty means a random one.
	Token  string
	Groups []string
}

// complete sets the defaults and returns a function that removes what it created.
func (o Options) complete() (Options, func() error, error) {
	undo := func() error { return nil }
	if o.Name == "" {
		o.Name = "lab"
	}
	if !regexp.MustCompile(`^[a-z0-9]([a-z0-9-]*[a-z0-9])?$`).MatchString(o.Name) {
		return o, undo, fmt.Errorf("name %q: use lower-case letters, digits and dashes", o.Name)
	}
	users, err := completeUsers(o.Users)
	if err != nil {
		return o, undo, err
	}
	o.Users = users
	if o.Dir == "" {
		if o.Detached {
			return o, undo, fmt.Errorf("a detached plane needs Options.Dir, else it could not be found again")
		}
		if o.Dir, err = os.MkdirTemp("", "drover-lab-"); err != nil {
			return o, undo, err
		}
		dir := o.Dir
		undo = func() error { return os.RemoveAll(dir) }
	}
	if o.Dir, err = filepath.Abs(o.Dir); err != nil {
		return o, undo, err
	}
	if o.LogDir == "" {
		o.LogDir = filepath.Join(o.Dir, "logs")
	}
	if o.PIDDir == "" {
		o.PIDDir = filepath.Join(o.Dir, "pids")
	}
	return o, undo, os.MkdirAll(filepath.Join(o.Dir, "pki"), 0o700)
}

// programs are the plane's programs in the order in which they start.
func (o Options) programs() []string {
	if o.Nodes != nil {
		return []string{Etcd, APIServer, ControllerManager, Scheduler}
	}
	if o.ControllerManager {
		return []string{Etcd, APIServer, ControllerManager}
	}
	return []string{Etcd, APIServer}
}

func completeUsers(users []User) ([]User, error) {
	seen := map[string]bool{}
	completed := make([]User, 0, len(users))
	for _, user := range users {
		if user.Token == "" {
			user.Token = rand.Text()
		}
		if user.Name == "" || seen[user.Name] {
			return nil, fmt.Errorf("user %q: give each user a name of its own", user.Name)
		}
		if len(user.Token) < 16 {
			return nil, fmt.Errorf("user %q: the token is shorter than 16 characters", user.Name)
		}
		seen[user.Name] = true
		completed = append(completed, user)
	}
	return completed, nil
}

// tokenFile is the content of --token-auth-file: token, name, uid and, if there are any, groups.
func tokenFile(users []User) ([]byte, error) {
	var buf bytes.Buffer
	out := csv.NewWriter(&buf)
	for _, user := range users {
		row := []string{user.Token, user.Name, "lab-" + user.Name}
		if len(user.Groups) > 0 { // an empty field would be a group without a name
			row = append(row, strings.Join(user.Groups, ","))
		}
		if err := out.Write(row); err != nil {
			return nil, fmt.Errorf("write token file: %w", err)
		}
	}
	out.Flush()
	return buf.Bytes(), out.Error()
}
