// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package nodes

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
)

// Commands with which labctl runs the processes of a lab. Users should not run them.
const (
	nodeCommand     = "node-process"
	initCommand     = "node-init"
	dnsCommand      = "node-dns"
	policiesCommand = "node-policies"
	relayCommand    = "relay-process"
	serviceCommand  = "host-systemctl"
)

// RunProcess returns false if args are not the arguments of a process of a lab. Otherwise, it runs this process, and
// returns when the process ends.
func RunProcess(args []string) (bool, error) {
	if len(args) < 2 {
		return false, nil
	}
	switch args[0] {
	case nodeCommand:
		runtime.LockOSThread() // the node ends with the thread that starts it
		return true, runNode(args[1])
	case initCommand:
		return true, runInit(args[1])
	case dnsCommand:
		return true, runDNS(args[1:])
	case policiesCommand:
		return true, runPolicies(args[1:])
	case relayCommand:
		return true, runRelay(args[1:])
	case serviceCommand:
		return true, runSystemctl(args[1:], os.Stdout)
	}
	return false, nil
}

// Cut disconnects a node from the network, as if its cable were unplugged. Its pods continue to run.
func (l *Lab) Cut(node string) error { return l.setLink(node, "down") }

// Mend reconnects a node after Cut.
func (l *Lab) Mend(node string) error { return l.setLink(node, "up") }

func (l *Lab) setLink(node, state string) error {
	n, err := l.plan.node(node)
	if err != nil {
		return err
	}
	relay, err := l.relayPID()
	if err != nil {
		return err
	}
	return inNetworkOf(relay, "ip", "link", "set", n.link, state)
}

// Beside returns a command that runs another command on the machine, but in the network of the nodes. There, the
// other command can reach the nodes, the pods and, on the bridge, the API servers.
func (l *Lab) Beside(args ...string) ([]string, error) {
	relay, err := l.relayPID()
	if err != nil {
		return nil, err
	}
	return append([]string{"nsenter", networkOf(relay)}, args...), nil
}

// Kill ends all processes of a node immediately, like a power failure. Up starts the node again.
func (l *Lab) Kill(node string) error {
	content, err := os.ReadFile(initPIDFile(l.nodeDir(node)))
	if err != nil {
		return fmt.Errorf("kill node %s: %w", node, err)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(content)))
	if err != nil {
		return fmt.Errorf("kill node %s: %w", node, err)
	}
	return killOf(l.dir, pid)
}

// Enter returns the arguments of a command that runs another command inside a node.
func (l *Lab) Enter(node string, args ...string) ([]string, error) {
	content, err := os.ReadFile(initPIDFile(l.nodeDir(node)))
	if err != nil {
		return nil, fmt.Errorf("enter node %s: %w", node, err)
	}
	enter := []string{"nsenter", "--target", strings.TrimSpace(string(content)), "--mount", "--pid", "--net", "--uts", "--ipc", "--cgroup", "env", "--unset=TMPDIR"}
	return append(enter, args...), nil
}

// Load imports a tarball of images into the nodes of a cluster. If cluster is "", it imports the images into all
// nodes. The nodes keep the images when they are restarted.
func (l *Lab) Load(ctx context.Context, tarball, cluster string) error {
	var errs []error
	loaded := 0
	for _, n := range l.plan.nodes {
		if cluster == "" || cluster == n.cluster {
			loaded++
			errs = append(errs, l.loadInto(ctx, tarball, n.Name))
		}
	}
	if loaded == 0 {
		return fmt.Errorf("load %s: no node is in cluster %q", tarball, cluster)
	}
	return errors.Join(errs...)
}

func (l *Lab) loadInto(_ context.Context, tarball, node string) error {
	name := filepath.Join(imagesDir, filepath.Base(tarball))
	if err := copyFile(tarball, filepath.Join(l.nodeDir(node), "root", name), 0o600); err != nil {
		return fmt.Errorf("load %s into node %s: %w", tarball, node, err)
	}
	args, err := l.Enter(node, "ctr", "--namespace", "k8s.io", "images", "import", name)
	if err != nil {
		return err
	}
	return command(args[0], args[1:]...)
}
