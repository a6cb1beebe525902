// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package nodes

import (
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// linkLimit is how long it may take to set up a node's network link.
const linkLimit = 30 * time.Second

// nodeSpec contains the data that the processes of a node read when they start.
type nodeSpec struct {
	Name string `json:"name"`
	// Dir is the node's folder. It contains the folder root, which is the node's root file system.
	Dir    string `json:"dir"`
	Cgroup string `json:"cgroup"`
	// RelayPID is the PID of a process in the network namespace that contains the bridge. Link is the name of the
	// node's network device in this namespace.
	RelayPID int          `json:"relayPID"`
	Link     string       `json:"link"`
	Address  netip.Prefix `json:"address"`
	Gateway  netip.Addr   `json:"gateway"`
	Pods     netip.Prefix `json:"pods"`
	Routes   []route      `json:"routes"`
	// Programs maps names in the node's /opt/lab to files on the machine. CNI is the machine's folder of CNI plugins.
	Programs map[string]string `json:"programs"`
	CNI      string            `json:"cni"`
	// Host is true if the node belongs to no cluster. Such a node has a service manager instead of a kubelet.
	Host bool `json:"host,omitempty"`
	// Policies is true if the node enforces NetworkPolicies.
	Policies bool `json:"policies,omitempty"`
}

func (s nodeSpec) root() string { return filepath.Join(s.Dir, "root") }

// initPIDFile returns the path of the file that contains the PID of the node's first process, as seen by the machine.
func initPIDFile(dir string) string { return filepath.Join(dir, "init.pid") }

func readNodeSpec(path string) (nodeSpec, error) {
	var s nodeSpec
	content, err := os.ReadFile(path)
	if err == nil {
		err = json.Unmarshal(content, &s)
	}
	if err != nil {
		return nodeSpec{}, fmt.Errorf("read node: %w", err)
	}
	return s, nil
}

// runNode runs in the process of a node that stays in the machine's namespaces. It creates the cgroup, starts the
// node's first process, and connects the node's network to the bridge. When either of the two processes ends, the
// kernel ends the other one.
func runNode(specPath string) error {
	spec, err := readNodeSpec(specPath)
	if err != nil {
		return err
	}
	all, err := machineHierarchies()
	if err != nil {
		return err
	}
	if err := renewCgroup(all, spec.Cgroup); err != nil {
		return err
	}
	linked, link, err := os.Pipe()
	if err != nil {
		return fmt.Errorf("start node: %w", err)
	}
	self, err := os.Executable()
	if err != nil {
		return fmt.Errorf("start node: %w", err)
	}
	first := exec.Command(self, initCommand, specPath)
	first.Stdout, first.Stderr, first.ExtraFiles = os.Stdout, os.Stderr, []*os.File{linked}
	first.SysProcAttr = &syscall.SysProcAttr{
		Pdeathsig: syscall.SIGKILL, // the caller has locked this thread
		Cloneflags: syscall.CLONE_NEWNS | syscall.CLONE_NEWPID | syscall.CLONE_NEWNET | syscall.CLONE_NEWUTS | syscall.CLONE_NEWIPC |
			syscall.CLONE_NEWCGROUP,
	}
	if err := first.Start(); err != nil {
		return fmt.Errorf("start node: %w", err)
	}
	if len(all) == 1 && all[0].isV2() { // in v2, only a cgroup without processes can have children
		err = joinCgroup(all, filepath.Join(filepath.Dir(spec.Cgroup), "outside"))
	}
	pid := strconv.Itoa(first.Process.Pid)
	if err == nil {
		err = spec.connect(pid)
	}
	if err == nil {
		err = os.WriteFile(initPIDFile(spec.Dir), []byte(pid), 0o644)
	}
	if err != nil {
		_ = first.Process.Kill()
		return fmt.Errorf("link the node: %w", err)
	}
	_ = link.Close() // signals the first process, which is waiting for the link
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, syscall.SIGTERM, syscall.SIGINT)
	go func() {
		<-stop
		_ = first.Process.Kill()
	}()
	return first.Wait()
}

// connect connects a process's network namespace to the bridge, and adds the route to the node's pods. If the node
// has just been killed, the kernel may not have removed the previous link yet.
func (s nodeSpec) connect(pid string) error {
	ctx, cancel := context.WithTimeout(context.Background(), linkLimit)
	defer cancel()
	if err := poll(ctx, func() error {
		return inNetworkOf(s.RelayPID, "ip", "link", "add", s.Link, "master", bridge, "up", "type", "veth", "peer", "name", "eth0", "netns", pid)
	}); err != nil {
		return err
	}
	return inNetworkOf(s.RelayPID, "ip", "route", "replace", s.Pods.String(), "via", s.Address.Addr().String())
}

// inNetworkOf runs a program in a process's network namespace.
func inNetworkOf(pid int, args ...string) error {
	return command("nsenter", append([]string{networkOf(pid)}, args...)...)
}

func networkOf(pid int) string { return "--net=/proc/" + strconv.Itoa(pid) + "/ns/net" }

// command runs a program until it ends. The error contains the program's output.
func command(name string, args ...string) error {
	output, err := exec.Command(name, args...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("%s %s: %w: %s", name, strings.Join(args, " "), err, strings.TrimSpace(string(output)))
	}
	return nil
}
