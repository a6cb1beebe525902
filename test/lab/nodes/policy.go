// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package nodes

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// A policyState has the objects that a node needs to enforce NetworkPolicies: the policies and pods of the cluster, and
// the labels of its namespaces.
type policyState struct {
	node       string
	pods       []*corev1.Pod
	namespaces map[string]labels.Set
	policies   []*networkingv1.NetworkPolicy
}

// A direction is the direction of a connection, seen from the pod that a policy selects.
type direction struct {
	kind networkingv1.PolicyType
	// chain begins the names of chains. pod and peer are the addresses of a packet.
	chain, pod, peer string
}

func directions() []direction {
	return []direction{
		{networkingv1.PolicyTypeEgress, "from_", "saddr", "daddr"},
		{networkingv1.PolicyTypeIngress, "to_", "daddr", "saddr"},
	}
}

// An allowance is one rule of a policy: connections with these peers on these ports, where none means all.
type allowance struct {
	peers []networkingv1.NetworkPolicyPeer
	ports []networkingv1.NetworkPolicyPort
}

func (d direction) allowances(p *networkingv1.NetworkPolicy) (all []allowance) {
	if d.kind == networkingv1.PolicyTypeIngress {
		for _, rule := range p.Spec.Ingress {
			all = append(all, allowance{rule.From, rule.Ports})
		}
		return all
	}
	for _, rule := range p.Spec.Egress {
		all = append(all, allowance{rule.To, rule.Ports})
	}
	return all
}

// rules returns the table of nftables that enforces the policies for the pods of the node. What a node sends to its own
// pods and gets from them is not forwarded, so it is always admitted, as Kubernetes asks for. Connections that were
// admitted go on when a policy changes.
func (s policyState) rules() (string, error) {
	var chains, jumps strings.Builder
	pods := slices.SortedFunc(slices.Values(s.pods), func(a, b *corev1.Pod) int { return cmp.Compare(a.Status.PodIP, b.Status.PodIP) })
	for _, d := range directions() {
		for _, pod := range pods {
			if pod.Spec.NodeName != s.node || !onPodNetwork(pod) {
				continue
			}
			lines, isolated, err := s.admitted(pod, d)
			if err != nil {
				return "", err
			}
			if !isolated {
				continue
			}
			name := d.chain + pod.Status.PodIP
			fmt.Fprintf(&chains, "chain %s { # %s/%s\n%sreject with icmp type admin-prohibited\n}\n", name, pod.Namespace, pod.Name, strings.Join(lines, ""))
			fmt.Fprintf(&jumps, "ip %s %s jump %s\n", d.pod, pod.Status.PodIP, name)
		}
	}
	return "table ip lab_policies\ndelete table ip lab_policies\ntable ip lab_policies {\n" + chains.String() +
		"chain forward {\ntype filter hook forward priority filter\nct state established,related accept\n" + jumps.String() + "}\n}\n", nil
}

// onPodNetwork reports whether the pod has an address of its own. The address of a pod that has ended may belong to
// another pod by now.
func onPodNetwork(pod *corev1.Pod) bool {
	address, err := netip.ParseAddr(pod.Status.PodIP)
	ended := pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed
	return err == nil && address.Is4() && !ended && !pod.Spec.HostNetwork
}

// admitted returns a line for each kind of connection that the policies admit, and reports whether any policy selects
// the pod. Only then are all other connections refused.
func (s policyState) admitted(pod *corev1.Pod, d direction) (lines []string, isolated bool, err error) {
	for _, p := range s.policies {
		if p.Namespace != pod.Namespace || !slices.Contains(p.Spec.PolicyTypes, d.kind) {
			continue
		}
		selected, err := selects(&p.Spec.PodSelector, pod.Labels)
		if err != nil {
			return nil, false, fmt.Errorf("enforce policy %s/%s: %w", p.Namespace, p.Name, err)
		}
		if !selected {
			continue
		}
		isolated = true
		for _, a := range d.allowances(p) {
			matches, err := s.matches(p.Namespace, a, pod, d)
			if err != nil {
				return nil, false, fmt.Errorf("enforce policy %s/%s: %w", p.Namespace, p.Name, err)
			}
			for _, match := range matches {
				lines = append(lines, strings.TrimSpace(match+" return")+"\n")
			}
		}
	}
	slices.Sort(lines)
	return slices.Compact(lines), isolated, nil
}

// matches returns an expression of nftables for each peer and port of a rule.
func (s policyState) matches(namespace string, a allowance, pod *corev1.Pod, d direction) (all []string, err error) {
	add := func(peer string, server *corev1.Pod) {
		if len(a.ports) == 0 {
			all = append(all, peer)
		}
		for _, port := range a.ports {
			if match := matchPort(port, server); match != "" {
				all = append(all, strings.TrimSpace(peer+" "+match))
			}
		}
	}
	server := func(peer *corev1.Pod) *corev1.Pod {
		if d.kind == networkingv1.PolicyTypeIngress {
			return pod
		}
		return peer
	}
	if len(a.peers) == 0 {
		add("", server(nil))
	}
	for _, peer := range a.peers {
		if peer.IPBlock != nil {
			if match := matchBlock(d.peer, peer.IPBlock); match != "" {
				add(match, server(nil))
			}
			continue
		}
		for _, other := range s.pods {
			is, err := s.isPeer(other, namespace, peer)
			if err != nil {
				return nil, err
			}
			if is {
				add("ip "+d.peer+" "+other.Status.PodIP, server(other))
			}
		}
	}
	return all, nil
}

// isPeer reports whether the selectors of a policy in that namespace select the pod.
func (s policyState) isPeer(pod *corev1.Pod, namespace string, peer networkingv1.NetworkPolicyPeer) (bool, error) {
	if !onPodNetwork(pod) {
		return false, nil
	}
	if peer.NamespaceSelector == nil {
		if pod.Namespace != namespace {
			return false, nil
		}
	} else if in, err := selects(peer.NamespaceSelector, s.namespaces[pod.Namespace]); err != nil || !in {
		return false, err
	}
	if peer.PodSelector == nil {
		return true, nil
	}
	return selects(peer.PodSelector, pod.Labels)
}

func selects(selector *metav1.LabelSelector, of map[string]string) (bool, error) {
	s, err := metav1.LabelSelectorAsSelector(selector)
	if err != nil {
		return false, err
	}
	return s.Matches(labels.Set(of)), nil
}

// matchBlock returns "" for a block of IPv6 addresses, which no pod of a lab has.
func matchBlock(field string, block *networkingv1.IPBlock) string {
	prefix, err := netip.ParsePrefix(block.CIDR)
	if err != nil || !prefix.Addr().Is4() {
		return ""
	}
	match := "ip " + field + " " + block.CIDR
	if len(block.Except) > 0 {
		match += " ip " + field + " != { " + strings.Join(block.Except, ", ") + " }"
	}
	return match
}

// matchPort returns an expression for a port of the pod that serves. A name is one of that pod's ports: without one of
// that name it matches nothing, which is "".
func matchPort(port networkingv1.NetworkPolicyPort, server *corev1.Pod) string {
	protocol := corev1.ProtocolTCP
	if port.Protocol != nil {
		protocol = *port.Protocol
	}
	name := strings.ToLower(string(protocol))
	switch {
	case port.Port == nil:
		return "meta l4proto " + name
	case port.Port.Type == intstr.Int && port.EndPort != nil:
		return fmt.Sprintf("%s dport %d-%d", name, port.Port.IntVal, *port.EndPort)
	case port.Port.Type == intstr.Int:
		return fmt.Sprintf("%s dport %d", name, port.Port.IntVal)
	case server == nil:
		return ""
	}
	for _, container := range server.Spec.Containers {
		for _, p := range container.Ports {
			if p.Name == port.Port.StrVal && cmp.Or(p.Protocol, corev1.ProtocolTCP) == protocol {
				return fmt.Sprintf("%s dport %d", name, p.ContainerPort)
			}
		}
	}
	return ""
}
