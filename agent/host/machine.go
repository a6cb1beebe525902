// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package host

import (
	"bufio"
	"cmp"
	"context"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/protocol"
)

// osReleases are the files that may contain the name of a machine's operating system.
var osReleases = []string{"/etc/os-release", "/usr/lib/os-release"}

// inspect returns the facts about the machine. Facts that cannot be determined are omitted.
func inspect(config Config) protocol.HostMachine {
	m := protocol.HostMachine{MemoryMiB: memory(), HostProperties: v1.HostProperties{
		OS: osName(), Architecture: runtime.GOARCH, CPUs: int32(runtime.NumCPU()), Addresses: addresses(),
		Roles: config.Roles, Labels: config.Labels, Taints: config.Taints,
	}}
	m.Hostname, _ = os.Hostname()
	kernel, _ := os.ReadFile("/proc/sys/kernel/osrelease")
	m.Kernel = strings.TrimSpace(string(kernel))
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

// memory returns the memory of the machine in MiB.
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

// addresses returns the addresses at which other machines can reach this machine, IPv4 addresses first. In each family,
// the source address of outgoing connections comes first. Bridges for containers and virtual machines have the same
// address on every machine. They are omitted unless the default route uses the bridge or there is no other interface.
func addresses() []string {
	interfaces, err := net.Interfaces()
	if err != nil {
		return nil
	}
	var found []address
	for _, i := range interfaces {
		networks, err := i.Addrs()
		if err != nil {
			continue
		}
		_, notBridge := os.Stat(filepath.Join("/sys/class/net", i.Name, "bridge"))
		for _, n := range networks {
			if network, ok := n.(*net.IPNet); ok && network.IP.IsGlobalUnicast() {
				found = append(found, address{network.IP, notBridge == nil})
			}
		}
	}
	return order(found, source("udp4", "192.0.2.1:9"), source("udp6", "[2001:db8::1]:9"))
}

type address struct {
	ip     net.IP
	bridge bool
}

// order selects and sorts the addresses of the machine's interfaces. sources are the source addresses of the default
// routes, and may be nil. order has no side effects.
func order(found []address, sources ...net.IP) []string {
	isSource := func(ip net.IP) bool { return slices.ContainsFunc(sources, ip.Equal) }
	useful := slices.DeleteFunc(slices.Clone(found), func(a address) bool { return a.bridge && !isSource(a.ip) })
	if len(useful) == 0 {
		useful = slices.Clone(found)
	}
	rank := func(a address) int {
		rank := family(a.ip) * 2
		if !isSource(a.ip) {
			rank++
		}
		return rank
	}
	slices.SortStableFunc(useful, func(a, b address) int { return cmp.Compare(rank(a), rank(b)) })
	texts := make([]string, 0, len(useful))
	for _, a := range useful {
		texts = append(texts, a.ip.String())
	}
	return texts
}

// source returns the address that this machine would use to connect to another machine, or nil if it could not connect.
// It sends no packets.
func source(network, to string) net.IP {
	conn, err := (&net.Dialer{}).DialContext(context.Background(), network, to)
	if err != nil {
		return nil
	}
	defer conn.Close()
	if local, ok := conn.LocalAddr().(*net.UDPAddr); ok {
		return local.IP
	}
	return nil
}

func family(ip net.IP) int {
	if ip.To4() != nil {
		return 4
	}
	return 6
}
