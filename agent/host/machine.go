// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package host

import (
	"bufio"
	"cmp"
	"net"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"

	"github.com/drover-dev/drover/internal/protocol"
)

// osReleases are where a machine says which operating system it has.
var osReleases = []string{"/etc/os-release", "/usr/lib/os-release"}

// inspect returns what the agent knows of its machine. What cannot be found out is left out.
func inspect(config Config) protocol.HostMachine {
	m := protocol.HostMachine{
		OS: osName(), Architecture: runtime.GOARCH, CPUs: int32(runtime.NumCPU()), Addresses: addresses(),
		Roles: config.Roles, Labels: config.Labels, Taints: config.Taints,
	}
	m.Hostname, _ = os.Hostname()
	kernel, _ := os.ReadFile("/proc/sys/kernel/osrelease")
	m.Kernel = strings.TrimSpace(string(kernel))
	m.MemoryMiB = memory()
	return m
}

func osName() string {
	for _, path := range osReleases {
		raw, err := os.ReadFile(path)
		if err != nil {
			continue
		}
		for line := range strings.Lines(string(raw)) {
			if value, ok := strings.CutPrefix(line, "PRETTY_NAME="); ok {
				return strings.Trim(strings.TrimSpace(value), `"'`)
			}
		}
	}
	return runtime.GOOS
}

// memory returns that of the machine in MiB.
func memory() int64 {
	file, err := os.Open("/proc/meminfo")
	if err != nil {
		return 0
	}
	defer file.Close()
	for lines := bufio.NewScanner(file); lines.Scan(); {
		if fields := strings.Fields(lines.Text()); len(fields) >= 2 && fields[0] == "MemTotal:" {
			kib, _ := strconv.ParseInt(fields[1], 10, 64)
			return kib >> 10
		}
	}
	return 0
}

// addresses returns those by which others may reach the machine, IPv4 first.
func addresses() []string {
	all, err := net.InterfaceAddrs()
	if err != nil {
		return nil
	}
	var found []net.IP
	for _, address := range all {
		if network, ok := address.(*net.IPNet); ok && network.IP.IsGlobalUnicast() {
			found = append(found, network.IP)
		}
	}
	slices.SortStableFunc(found, func(a, b net.IP) int { return cmp.Compare(family(a), family(b)) })
	texts := make([]string, 0, len(found))
	for _, ip := range found {
		texts = append(texts, ip.String())
	}
	return texts
}

func family(ip net.IP) int {
	if ip.To4() != nil {
		return 4
	}
	return 6
}
