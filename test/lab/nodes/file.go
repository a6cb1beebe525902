// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package nodes

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"

	"k8s.io/apimachinery/pkg/util/validation"
	"sigs.k8s.io/yaml"
)

const (
	fileKind       = "Lab"
	fileAPIVersion = "lab.drover.dev/v1"

	// maxNodes is the maximum number of nodes in a lab. A node uses about 250 MB of memory.
	maxNodes = 100
)

// File describes a lab, in the same way as kind's Cluster file describes a cluster.
type File struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	// Name distinguishes the lab from other labs on the machine.
	Name       string     `json:"name"`
	Networking Networking `json:"networking,omitempty"`
	Clusters   []Cluster  `json:"clusters,omitempty"`
	// Hosts are computers that belong to the lab but to no cluster. They have containerd and a service manager, and
	// other software can be installed on them.
	Hosts []Host `json:"hosts,omitempty"`
	// Programs are files that every host has in /opt/lab. The keys are paths below /opt/lab, and the values are files
	// on this machine. A file may also be a tarball.
	Programs map[string]string `json:"programs,omitempty"`
	// Images are tarballs of images that every node and host gets. Paths are relative to the folder of the file.
	Images []string `json:"images,omitempty"`
}

// Networking defines the addresses in the lab. The addresses exist only in the lab's network namespaces, so two labs
// can use the same addresses.
type Networking struct {
	// Subnet is the subnet of the nodes. It defaults to 10.90.0.0/16.
	Subnet string `json:"subnet,omitempty"`
	// PodSubnet is the subnet of the pods. Each node gets a /24 of it. It defaults to 10.128.0.0/16.
	PodSubnet string `json:"podSubnet,omitempty"`
	// MachinePorts are ports on the machine's loopback interface that nodes and pods can reach on the bridge, in
	// addition to the ports of the API servers.
	MachinePorts []int `json:"machinePorts,omitempty"`
	// NetworkPolicies makes nodes enforce NetworkPolicies.
	NetworkPolicies bool `json:"networkPolicies,omitempty"`
}

// Cluster is a control plane and its nodes.
type Cluster struct {
	Name  string `json:"name"`
	Nodes []Node `json:"nodes"`
	// Images are tarballs of images that the nodes of this cluster get.
	Images []string `json:"images,omitempty"`
}

// Node is one machine of a cluster.
type Node struct {
	// Name is unique in the lab. It defaults to <cluster>-<number>.
	Name   string            `json:"name,omitempty"`
	Labels map[string]string `json:"labels,omitempty"`
}

// Host is one computer without Kubernetes.
type Host struct {
	// Name is unique among the hosts and nodes of the lab.
	Name string `json:"name"`
}

// ReadFile reads a lab file and makes its paths absolute.
func ReadFile(path string) (File, error) {
	content, err := os.ReadFile(path)
	if err != nil {
		return File{}, fmt.Errorf("read lab file: %w", err)
	}
	f, err := ParseFile(content)
	if err != nil {
		return File{}, fmt.Errorf("read lab file %s: %w", path, err)
	}
	dir, err := filepath.Abs(filepath.Dir(path))
	if err != nil {
		return File{}, fmt.Errorf("read lab file: %w", err)
	}
	resolve(dir, f.Images)
	for name, path := range f.Programs {
		f.Programs[name] = absolute(dir, path)
	}
	for _, c := range f.Clusters {
		resolve(dir, c.Images)
	}
	return f, nil
}

func resolve(dir string, paths []string) {
	for i, path := range paths {
		paths[i] = absolute(dir, path)
	}
}

func absolute(dir, path string) string {
	if filepath.IsAbs(path) {
		return path
	}
	return filepath.Join(dir, path)
}

// ParseFile parses and validates a lab file, and sets defaults. The error lists all problems.
func ParseFile(content []byte) (File, error) {
	var f File
	if err := yaml.UnmarshalStrict(content, &f); err != nil {
		return File{}, err
	}
	f.setDefaults()
	return f, f.validate()
}

func (f *File) setDefaults() {
	if f.Networking.Subnet == "" {
		f.Networking.Subnet = "10.90.0.0/16"
	}
	if f.Networking.PodSubnet == "" {
		f.Networking.PodSubnet = "10.128.0.0/16"
	}
	for i := range f.Clusters {
		c := &f.Clusters[i]
		for j := range c.Nodes {
			if c.Nodes[j].Name == "" {
				c.Nodes[j].Name = fmt.Sprintf("%s-%d", c.Name, j+1)
			}
		}
	}
}

func (f *File) validate() error {
	var errs []error
	if f.APIVersion != fileAPIVersion || f.Kind != fileKind {
		errs = append(errs, fmt.Errorf("apiVersion and kind are %q and %q: write %s and %s", f.APIVersion, f.Kind, fileAPIVersion, fileKind))
	}
	errs = append(errs, validName("name", f.Name))
	if len(f.Clusters)+len(f.Hosts) == 0 {
		errs = append(errs, errors.New("clusters: name at least one, or a host"))
	}
	clusters, nodes := map[string]bool{}, map[string]bool{}
	for i, c := range f.Clusters {
		field := fmt.Sprintf("clusters[%d].name", i)
		errs = append(errs, validName(field, c.Name), unique(clusters, field, c.Name))
		for j, n := range c.Nodes {
			field := fmt.Sprintf("clusters[%d].nodes[%d].name", i, j)
			errs = append(errs, validName(field, n.Name), unique(nodes, field, n.Name))
		}
	}
	for i, h := range f.Hosts {
		field := fmt.Sprintf("hosts[%d].name", i)
		errs = append(errs, validName(field, h.Name), unique(nodes, field, h.Name))
	}
	if len(nodes) > maxNodes {
		errs = append(errs, fmt.Errorf("clusters: %d nodes and hosts, at most %d fit", len(nodes), maxNodes))
	}
	return errors.Join(append(errs, f.Networking.validate())...)
}

func validName(field, name string) error {
	if faults := validation.IsDNS1123Label(name); len(faults) > 0 || len(name) > 40 {
		return fmt.Errorf("%s: %q: use 1 to 40 lower-case letters, digits and dashes", field, name)
	}
	return nil
}

func unique(seen map[string]bool, field, name string) error {
	if seen[name] {
		return fmt.Errorf("%s: %q is taken: give each a name of its own", field, name)
	}
	seen[name] = true
	return nil
}

func (n Networking) validate() error {
	var errs []error
	prefixes := map[string]netip.Prefix{"Service addresses": serviceSubnet()}
	for _, field := range []struct {
		name, value string
		bits        int
	}{{"networking.subnet", n.Subnet, 24}, {"networking.podSubnet", n.PodSubnet, 17}} {
		prefix, err := netip.ParsePrefix(field.value)
		if err != nil || !prefix.Addr().Is4() || prefix.Masked() != prefix || prefix.Bits() > field.bits {
			errs = append(errs, fmt.Errorf("%s: %q: write an IPv4 network of at least /%d, such as 10.90.0.0/16", field.name, field.value, field.bits))
			continue
		}
		for other, taken := range prefixes {
			if taken.Overlaps(prefix) {
				errs = append(errs, fmt.Errorf("%s: %s overlaps with %s, %s", field.name, prefix, other, taken))
			}
		}
		prefixes[field.name] = prefix
	}
	for i, port := range n.MachinePorts {
		if port < 1 || port > 65535 {
			errs = append(errs, fmt.Errorf("networking.machinePorts[%d]: %d: write a port from 1 to 65535", i, port))
		}
	}
	return errors.Join(errs...)
}
