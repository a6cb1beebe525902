// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package nodes

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

const (
	// networkOfHosts is the path of a CNI configuration on a host. With this configuration, pods can be reached from
	// other hosts. It takes effect when it is copied to /etc/cni/net.d.
	networkOfHosts = "etc/lab/10-lab.conflist"

	// hostReadyFile is a file that exists once the host is ready for use.
	hostReadyFile = "/var/lib/drover-lab/ready"

	// systemctlFile is the path of the replacement for systemctl.
	systemctlFile = "usr/local/bin/systemctl"
)

func (n nodePlan) String() string {
	if n.isHost() {
		return "host " + n.Name
	}
	return "node " + n.Name + " of " + n.cluster
}

// Address returns the address of a node or host.
func (l *Lab) Address(node string) (string, error) {
	n, err := l.plan.node(node)
	return n.address.Addr().String(), err
}

// HostLog returns the path of the log of a unit on a host, or of the host's containerd.
func (l *Lab) HostLog(host, unit string) string { return l.NodeLog(host, unit) }

// writeHost writes the additional files that a host has but a node does not have.
func (s nodeSpec) writeHost() error {
	if err := os.Remove(filepath.Join(s.root(), hostReadyFile)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	id := sha256.Sum256([]byte(s.Dir))
	if err := writeInto(s.root(), "etc/machine-id", []byte(hex.EncodeToString(id[:16])+"\n")); err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Join(s.root(), "var"), 0o755); err != nil {
		return err
	}
	if err := os.Symlink("/run", filepath.Join(s.root(), "var/run")); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return errors.Join(
		os.MkdirAll(filepath.Join(s.root(), "etc/cni/net.d"), 0o755), // containerd watches this folder
		os.MkdirAll(filepath.Join(s.root(), "etc/systemd/system"), 0o755),
	)
}

// hostReady returns nil if the host is ready for use.
func (l *Lab) hostReady(n nodePlan) error {
	if _, err := os.Stat(filepath.Join(l.nodeDir(n.Name), "root", hostReadyFile)); err != nil {
		return fmt.Errorf("host %s is not up: %w", n.Name, err)
	}
	return nil
}

// firewall returns rules that make a host refuse all new connections from the bridge, through which connections from
// outside the lab arrive. Responses to the host's own connections are allowed.
func (s nodeSpec) firewall() string {
	drop := fmt.Sprintf("ip saddr %s ct state new drop;", s.Gateway)
	return "\ntable ip firewall { chain incoming { type filter hook input priority 0; " + drop + " }; chain passing { type filter hook forward priority 0; " + drop + " }; }"
}

// runHost runs in the first process of a host once containerd is running. It starts the units that are enabled, and
// handles systemctl commands.
func runHost(containerd *service) error {
	// Programs on the host find the binary only by its path, because a unit has the PATH that systemd sets.
	script := "#!/bin/sh\nexec /opt/lab/labctl " + serviceCommand + " \"$@\"\n"
	if err := errors.Join(os.MkdirAll(filepath.Dir("/"+systemctlFile), 0o755), os.WriteFile("/"+systemctlFile, []byte(script), 0o755)); err != nil {
		return err
	}
	manager, err := startServiceManager()
	if err != nil {
		return err
	}
	if err := os.WriteFile(hostReadyFile, nil, 0o644); err != nil {
		return err
	}
	return keep([]*service{containerd}, manager)
}
