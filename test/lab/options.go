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

// Options are the options of a control plane. The zero value is suitable for a test: the plane is attached, uses a
// temporary folder, and has no controller manager.
type Options struct {
	// Name is the name of the context in kubeconfigs and the prefix of log and pid files. It defaults to "lab".
	Name string
	// Dir is the folder for keys, ports and data. If a plane is started again in the same folder, it uses the
	// existing ones. Dir contains secrets, so only its owner gets access to it. It defaults to a temporary folder,
	// which Stop removes.
	Dir string
	// LogDir and PIDDir are the folders for the files <name>-<program>.log and .pid. They default to logs and pids in
	// Dir.
	LogDir, PIDDir string
	// Assets are the programs. By default, Binaries provides them and reports to Progress.
	Assets   Assets
	Progress io.Writer
	// ControllerManager adds kube-controller-manager to the plane. Start then waits for the ServiceAccount
	// default/default.
	ControllerManager bool
	// Users are users who can authenticate with a token.
	Users []User
	// ExtraArgs are additional arguments for each program, by program name. They take precedence over the lab's own
	// flags.
	ExtraArgs map[string][]string
	// ExtraEnv are additional environment variables for all programs, such as GOGC=200.
	ExtraEnv []string
	// Durable makes etcd sync its writes to disk. It is off by default, because syncing takes up most of the time of
	// a write.
	Durable bool
	// Nodes prepares the plane for real nodes. If it is set, the plane runs a scheduler, and it runs a controller
	// manager even if ControllerManager is false.
	Nodes *NodeSupport
	// Detached makes the plane continue when the caller ends. StopDetached(PIDDir) ends it.
	Detached bool
}

// NodeSupport describes how a plane and its nodes reach each other. The nodes run in their own network namespaces,
// and the API server listens only on loopback.
type NodeSupport struct {
	// Address is the address at which nodes and pods reach the API server, on the port in its URL.
	Address string
	// EgressSocket is the path of a Unix socket that serves HTTP CONNECT. The API server connects to kubelets and
	// webhooks through it.
	EgressSocket string
}

// User is a user who authenticates with a static token.
type User struct {
	Name string
	// Token is a secret of at least 16 characters. If it is empty, a random token is used.
	Token  string
	Groups []string
}

// complete sets the defaults. It also returns a function that removes everything that complete has created.
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

// programs returns the plane's programs in the order in which they start.
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

// tokenFile returns the content of --token-auth-file. Each line consists of token, name, uid and, if there are any,
// groups.
func tokenFile(users []User) ([]byte, error) {
	var buf bytes.Buffer
	out := csv.NewWriter(&buf)
	for _, user := range users {
		row := []string{user.Token, user.Name, "lab-" + user.Name}
		if len(user.Groups) > 0 { // an empty field would be a group with an empty name
			row = append(row, strings.Join(user.Groups, ","))
		}
		if err := out.Write(row); err != nil {
			return nil, fmt.Errorf("write token file: %w", err)
		}
	}
	out.Flush()
	return buf.Bytes(), out.Error()
}
