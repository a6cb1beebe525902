// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package host

import (
	"bytes"
	"io"
	"net"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

func TestAddressOfTheDefaultRouteIsReportedFirst(t *testing.T) {
	t.Parallel()
	at := func(ip string, bridge bool) address { return address{net.ParseIP(ip), bridge} }
	docker, lan, storage, six := at("172.17.0.1", true), at("10.1.0.7", false), at("10.9.0.7", false), at("fd00::7", false)
	for name, tt := range map[string]struct {
		found   []address
		sources []string
		want    string
	}{
		"a bridge before the interface":  {[]address{docker, lan}, []string{"10.1.0.7"}, "10.1.0.7"},
		"a bridge, and no default route": {[]address{docker, lan}, nil, "10.1.0.7"},
		"another network before":         {[]address{storage, lan}, []string{"10.1.0.7"}, "10.1.0.7 10.9.0.7"},
		"IPv6 before": {[]address{six, storage, lan}, []string{"10.1.0.7", "fd00::7"},
			"10.1.0.7 10.9.0.7 fd00::7"},
		"IPv6 alone": {[]address{docker, six}, []string{"fd00::7"}, "fd00::7"},
		"a bridge that the machine's network is": {[]address{storage, at("10.1.0.8", true)}, []string{"10.1.0.8"},
			"10.1.0.8 10.9.0.7"},
		"a bridge that is all there is": {[]address{docker}, nil, "172.17.0.1"},
		"none":                          {nil, nil, ""},
	} {
		var sources []net.IP
		for _, text := range tt.sources {
			sources = append(sources, net.ParseIP(text))
		}
		if got := strings.Join(order(tt.found, sources...), " "); got != tt.want {
			t.Errorf("%s: the machine reports %q, want %q", name, got, tt.want)
		}
	}
}

// envInspect makes the test program print the addresses of the network that it runs in.
const envInspect = "DROVER_TEST_ADDRESSES"

func TestMain(m *testing.M) {
	if os.Getenv(envInspect) != "" {
		_, _ = io.WriteString(os.Stdout, strings.Join(addresses(), " ")+"\n")
		return
	}
	m.Run()
}

// TestContainerRuntimesBridgeIsNotReported runs in a separate network, with real interfaces.
func TestContainerRuntimesBridgeIsNotReported(t *testing.T) {
	t.Parallel()
	const network = `set -e
mount -t sysfs sysfs /sys
ip link add docker0 type bridge && ip addr add 172.17.0.1/16 dev docker0 && ip link set docker0 up
ip link add data0 type veth peer name data1 && ip addr add 10.9.0.7/24 dev data0 && ip link set data0 up
ip link add lan0 type veth peer name lan1 && ip addr add 10.1.0.7/24 dev lan0 && ip link set lan0 up && ip link set lan1 up
ip route add default via 10.1.0.1
exec "$0"`
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("unshare", "--net", "--mount", "ip", "link", "add", "br0", "type",
		"bridge").CombinedOutput(); err != nil {
		t.Skipf("no network of its own for a test: %v %s", err, out)
	}
	command := exec.CommandContext(t.Context(), "unshare", "--net", "--mount", "sh", "-c", network, self)
	command.Env = append(os.Environ(), envInspect+"=true")
	out, err := command.CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, bytes.TrimSpace(out))
	}
	if got := strings.Fields(string(out)); !slices.Equal(got, []string{"10.1.0.7", "10.9.0.7"}) {
		t.Errorf("the machine reports %v, want the address of its default route first, and no bridge", got)
	}
}
