// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package upgradecheck

import (
	"fmt"
	"regexp"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/version"

	v1 "github.com/drover-dev/drover/api/v1"
)

const (
	// maxSkew is the number of minor versions by which a kubelet can be older than the API server. See
	// https://kubernetes.io/releases/version-skew-policy/#kubelet.
	maxSkew = 3
	// firstMinor is the first minor version that counts as a version of Kubernetes. Plans also install other software,
	// such as containerd 1.7.
	firstMinor = 20
)

// TargetOf returns the upgrade that a Plan performs when it installs the given version. applies is false if this is not
// a version of Kubernetes.
func TargetOf(plan *v1.Plan, version string) (target Target, applies bool) {
	target = Target{Version: version, Plan: plan.Name, Nodes: labels.Everything(), Drain: plan.Spec.Drain}
	if plan.Spec.NodeSelector != nil {
		// A Plan with an invalid selector does not start, so its target does not matter.
		if selector, err := metav1.LabelSelectorAsSelector(plan.Spec.NodeSelector); err == nil {
			target.Nodes = selector
		}
	}
	return target, Applies(version)
}

// Applies reports whether a version is a version of Kubernetes, such as "v1.36.3+k3s1" or "1.36". The checks apply only
// to such versions.
func Applies(version string) bool {
	_, ok := minor(version)
	return ok
}

// patchless matches a version without a patch version.
var patchless = regexp.MustCompile(`^v?[0-9]+\.[0-9]+$`)

// minor returns the minor version of Kubernetes 1.
func minor(text string) (int, bool) {
	v, err := version.ParseSemantic(text)
	if err != nil && patchless.MatchString(text) {
		v, err = version.ParseGeneric(text)
	}
	if err != nil || v.Major() != 1 || v.Minor() < firstMinor || v.Minor() > 999 {
		return 0, false
	}
	return int(v.Minor()), true
}

// planes reports whether the Plan upgrades the control plane. Without labels on the nodes, any node may run it.
func (c *checker) planes() (upgraded bool) {
	labeled := false
	for i := range c.Nodes {
		labeled = labeled || c.Nodes[i].ControlPlane
		upgraded = upgraded || c.Nodes[i].ControlPlane && c.Nodes[i].Selected
	}
	return upgraded || !labeled
}

// versions finds skipped minor versions and downgrades.
func (c *checker) versions() {
	if !c.planes() {
		return
	}
	switch skipped := c.goal - c.server - 1; {
	case skipped > 0:
		c.add(CheckKubernetesVersion, objectServer,
			fmt.Sprintf("an upgrade from %s to %s skips %d minor versions", c.Version, c.target.Version, skipped),
			fmt.Sprintf("upgrade to 1.%d first, and then to each following minor version", c.server+1))
	case c.goal < c.server && c.older():
		c.add(CheckKubernetesVersion, objectServer,
			fmt.Sprintf("it runs %s, and %s is a downgrade, which Kubernetes does not support", c.Version, c.target.Version),
			fmt.Sprintf("set the version to 1.%d or later", c.server))
	}
}

// older reports whether the Plan would downgrade a node.
func (c *checker) older() bool {
	for i := range c.Nodes {
		n := &c.Nodes[i]
		if kubelet, ok := minor(n.Kubelet); n.Selected && (n.ControlPlane || ok && kubelet > c.goal) {
			return true
		}
	}
	return false
}

// oldest returns the lowest version of an API server. The other API servers are only known by the kubelets beside them.
func (c *checker) oldest() (int, string) {
	oldest, text := c.server, c.Version
	for i := range c.Nodes {
		n := &c.Nodes[i]
		if kubelet, ok := minor(n.Kubelet); ok && n.ControlPlane && kubelet < oldest {
			oldest, text = kubelet, n.Kubelet+" on node "+n.Name
		}
	}
	return oldest, text
}

// kubelets finds kubelets that do not work together with the API server during or after the upgrade.
func (c *checker) kubelets() {
	server := c.server
	upgraded := c.planes()
	if upgraded {
		server = max(server, c.goal)
	}
	oldest, version := c.oldest()
	for i := range c.Nodes {
		n := &c.Nodes[i]
		object := "node/" + n.Name
		kubelet, ok := minor(n.Kubelet)
		switch {
		case n.Virtual: // its version is not a version of a kubelet
		case n.Kubelet == "": // the kubelet has never reported, so the node is not ready
		case !ok:
			c.unchecked(Unread{Check: CheckKubeletVersion, Object: object,
				Cause: fmt.Sprintf("the kubelet's version is %q", n.Kubelet)})
		case server-kubelet > maxSkew:
			c.add(CheckKubeletVersion, object,
				fmt.Sprintf("its kubelet runs %s, and Kubernetes 1.%d supports kubelets from 1.%d", n.Kubelet, server,
					server-maxSkew),
				fmt.Sprintf("upgrade this kubelet to 1.%d first", min(server-maxSkew, c.server)))
		case n.Selected && !upgraded && c.goal > oldest:
			c.add(CheckKubeletVersion, object,
				fmt.Sprintf("its kubelet would run %s, which is newer than the API server's %s", c.target.Version, version),
				"upgrade the control plane first")
		case kubelet > server:
			c.add(CheckKubeletVersion, object,
				fmt.Sprintf("its kubelet runs %s, which is newer than the API server's %s", n.Kubelet, c.Version),
				"upgrade the control plane first, or replace the node")
		}
	}
}

// nodes finds nodes that are not ready. Nodes that the Plan does not upgrade count only if they are more than a tenth
// of all nodes, because in a large cluster some node is nearly always not ready.
func (c *checker) nodes() {
	var other []string
	for i := range c.Nodes {
		n := &c.Nodes[i]
		switch {
		case n.Ready:
		case n.ControlPlane || n.Selected:
			c.notReady(n.Name)
		case !n.Excluded && !n.Virtual:
			other = append(other, n.Name)
		}
	}
	if 10*len(other) > len(c.Nodes) {
		for _, name := range other {
			c.notReady(name)
		}
	}
}

func (c *checker) notReady(node string) {
	c.add(CheckNodesReady, "node/"+node, "it is not ready", "repair the node, or delete it")
}
