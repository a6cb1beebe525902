// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"

	"github.com/drover-dev/drover/agent/direct"
	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/protocol"
)

// defaultListen is the address for probes. defaultDirectListen is the address for users who bypass the hub. Neither is
// a loopback address, because clients connect from outside the pod.
const (
	defaultListen       = ":8080"
	defaultDirectListen = ":6443"
)

// Environ holds the agent's settings from the manifest.
type Environ struct {
	// Servers are the hub's base URLs without a trailing slash. The preferred URL comes first. There is at least one
	// URL.
	Servers []string
	// Checksums contains the checksums of trusted CA certificates.
	Checksums []string
	// Trust is Pinned or System.
	Trust v1.Trust
	// Profile is Full or ReadOnly.
	Profile v1.AgentProfile
	// Debug sets the log level to debug.
	Debug bool
	// TunnelDataDebug enables logging of the headers of the tunnel's frames. The content of the frames is never
	// logged.
	TunnelDataDebug bool
	// Namespace is the namespace of the agent.
	Namespace string
	// HostNetwork is true if the agent uses the network of its node. In that case, the agent opens no port and ignores
	// Listen.
	HostNetwork bool
	// Listen is the address for probes.
	Listen string
	// DirectListen is the address for users who bypass the hub, if the Cluster allows direct access.
	DirectListen string
	// Socket is the path of the Unix socket for probes and for changing the log level.
	Socket string
}

// aliases maps the agent's environment variables to the names that Rancher uses for them. A DROVER_ name takes
// precedence over its alias.
func aliases() map[string]string {
	return map[string]string{
		protocol.EnvServer:          "CATTLE_SERVER",
		protocol.EnvCAChecksum:      "CATTLE_CA_CHECKSUM",
		protocol.EnvDebug:           "CATTLE_DEBUG",
		protocol.EnvTunnelDataDebug: "CATTLE_TUNNEL_DATA_DEBUG",
	}
}

// Socket returns the path of the Unix socket for probes and for changing the log level. It reads no other settings,
// because the commands that use the socket need no others.
func Socket(lookup func(string) (string, bool)) string {
	r := reader{lookup: lookup}
	return r.text(protocol.EnvSocket, filepath.Join(os.TempDir(), "drover-agent.sock"))
}

// ReadEnviron reads all settings. The error names each invalid variable and explains how to fix it.
func ReadEnviron(lookup func(string) (string, bool)) (Environ, error) {
	r := &reader{lookup: lookup}
	directListen := defaultDirectListen
	if r.boolean(protocol.EnvHostNetwork) { // the port would be open on the node, where an API server may use it
		directListen = "127.0.0.1:0"
	}
	env := Environ{
		Servers:         r.servers(),
		Checksums:       r.checksums(),
		Trust:           oneOf(r, protocol.EnvTrust, v1.TrustPinned, v1.TrustSystem),
		Profile:         oneOf(r, protocol.EnvProfile, v1.ProfileFull, v1.ProfileReadOnly),
		Debug:           r.boolean(protocol.EnvDebug),
		TunnelDataDebug: r.boolean(protocol.EnvTunnelDataDebug),
		Namespace:       r.text(protocol.EnvNamespace, protocol.AgentNamespace),
		HostNetwork:     r.boolean(protocol.EnvHostNetwork),
		Listen:          r.text(protocol.EnvListen, defaultListen),
		DirectListen:    r.text(protocol.EnvDirectListen, directListen),
		Socket:          Socket(lookup),
	}
	if err := errors.Join(r.errs...); err != nil {
		return Environ{}, fmt.Errorf("read environment: %w", err)
	}
	return env, nil
}

// ReadDirectEnviron reads the settings of the process that reviews users' tokens for API servers. None of these
// settings relate to the hub.
func ReadDirectEnviron(lookup func(string) (string, bool)) (Environ, error) {
	r := &reader{lookup: lookup}
	env := Environ{
		Debug:        r.boolean(protocol.EnvDebug),
		Namespace:    r.text(protocol.EnvNamespace, protocol.AgentNamespace),
		DirectListen: r.text(protocol.EnvDirectListen, protocol.DirectAddress),
		Socket:       Socket(lookup),
	}
	if !direct.IsLoopback(env.DirectListen) {
		r.fail("%s is %q: set it to an address of the loopback interface, for example %s", protocol.EnvDirectListen,
			env.DirectListen, protocol.DirectAddress)
	}
	if err := errors.Join(r.errs...); err != nil {
		return Environ{}, fmt.Errorf("read environment: %w", err)
	}
	return env, nil
}

// reader looks up variables and collects the errors.
type reader struct {
	lookup func(string) (string, bool)
	errs   []error
}

// value returns the value of a variable. If the variable is not set, value returns the value of its alias. found is the
// name of the variable that was used.
func (r *reader) value(name string) (found, value string) {
	if v, ok := r.lookup(name); ok && strings.TrimSpace(v) != "" {
		return name, strings.TrimSpace(v)
	}
	if alias, ok := aliases()[name]; ok {
		if v, ok := r.lookup(alias); ok && strings.TrimSpace(v) != "" {
			return alias, strings.TrimSpace(v)
		}
	}
	return name, ""
}

func (r *reader) text(name, fallback string) string {
	if _, v := r.value(name); v != "" {
		return v
	}
	return fallback
}

func (r *reader) boolean(name string) bool {
	found, v := r.value(name)
	if v == "" {
		return false
	}
	b, err := strconv.ParseBool(v)
	if err != nil {
		r.fail("%s is %q: set it to true or false", found, v)
	}
	return b
}

// oneOf returns the value of a variable that allows two values. If the variable is not set, oneOf returns the standard
// value.
func oneOf[T ~string](r *reader, name string, standard, other T) T {
	value := T(r.text(name, string(standard)))
	if value != standard && value != other {
		r.fail("%s is %q: set it to %s or %s", name, value, standard, other)
	}
	return value
}

func (r *reader) servers() []string {
	found, v := r.value(protocol.EnvServer)
	var servers []string
	for _, entry := range list(v) {
		server, err := protocol.ServerURL(entry)
		if err != nil {
			r.fail("%s: %w", found, err)
			continue
		}
		servers = append(servers, server)
	}
	if len(servers) == 0 && len(r.errs) == 0 {
		r.fail("%s is not set: set it to the hub's URL, for example https://drover.example.com", found)
	}
	return servers
}

func (r *reader) checksums() []string {
	found, v := r.value(protocol.EnvCAChecksum)
	sums := list(v)
	// A checksum is a SHA-256 hash in hexadecimal, with or without the colons that openssl prints.
	checksum := regexp.MustCompile(`^([0-9A-Fa-f]{64}|([0-9A-Fa-f]{2}:){31}[0-9A-Fa-f]{2})$`)
	for _, sum := range sums {
		if !checksum.MatchString(sum) {
			r.fail("%s: %q is not a SHA-256 in hex: copy the value from the hub's manifest", found, sum)
		}
	}
	return sums
}

func (r *reader) fail(format string, args ...any) {
	r.errs = append(r.errs, fmt.Errorf(format, args...))
}

// list splits a value at commas, and drops empty elements.
func list(v string) []string {
	var out []string
	for entry := range strings.SplitSeq(v, ",") {
		if entry = strings.TrimSpace(entry); entry != "" {
			out = append(out, entry)
		}
	}
	return out
}
