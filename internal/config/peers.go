// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package config

import (
	"fmt"
	"net"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"
)

// Peers configures how the replicas of the manager find and reach each other. If neither Service nor Addresses is set,
// this process is the only replica and opens no port for other replicas.
type Peers struct {
	// Listen is the address of the port that other replicas connect to. Default: ":8444".
	Listen string `json:"listen,omitempty"`
	// Service names the headless Service in Namespace whose endpoints are the replicas. The Service must also publish
	// addresses that are not ready, because a replica keeps its tunnels while it is stopping.
	Service string `json:"service,omitempty"`
	// Addresses lists the replicas as host:port, for processes outside a cluster. The list may include this replica.
	Addresses []string `json:"addresses,omitempty"`
}

// Enabled reports whether there may be other replicas.
func (p Peers) Enabled() bool { return p.Service != "" || len(p.Addresses) > 0 }

func (p *Peers) setDefaults() { setDefault(&p.Listen, ":8444") }

// validate calls add for each error in the section. The arguments of add are a field, a format string and the format's
// arguments.
func (p *Peers) validate(add func(field, format string, args ...any)) {
	if _, _, err := net.SplitHostPort(p.Listen); err != nil {
		add("peers.listen", "want host:port or :port: %w", err)
	}
	if p.Service != "" && len(p.Addresses) > 0 {
		add("peers", "want service or addresses, not both")
	}
	if p.Service != "" {
		if problems := validation.IsDNS1035Label(p.Service); len(problems) > 0 {
			add("peers.service", "%s", strings.Join(problems, "; "))
		}
	}
	for i, address := range p.Addresses {
		if host, port, err := net.SplitHostPort(address); err != nil || host == "" || port == "" {
			add(fmt.Sprintf("peers.addresses[%d]", i), "%q is not of the form host:port", address)
		}
	}
}
