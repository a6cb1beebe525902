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

// policyState contains the objects that a node needs to enforce NetworkPolicies. These are the cluster's policies and
// pods, and the labels of its namespaces.
type policyState struct {
	node       string
	pods       []*corev1.Pod
	namespaces map[string]labels.Set
	policies   []*networkingv1.NetworkPolicy
}

// direction is the direction of a connection, as seen by the pod that a policy selects.
type direction struct {
	kind networkingv1.PolicyType
	// chain is the prefix of chain names. pod and peer are the packet fields that contain the addresses of the pod
	// and its peer.
	chain, pod, peer string
}

func directions() []direction {
	return []direction{
		{networkingv1.PolicyTypeEgress, "from_", "saddr", "daddr"},
		{networkingv1.PolicyTypeIngress, "to_", "daddr", "saddr"},
	}
}

// allowance is one rule of a policy. It allows connections with the given peers on the given ports. An empty list
// means all.
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

// rules returns the nftables table that enforces the policies for the node's pods. Packets between a node and its own
// pods are not forwarded. They are therefore always allowed, as Kubernetes requires. Connections that were allowed
// continue when a policy changes.
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

// onPodNetwork reports whether the pod has its own address. If the pod has ended, its address may already belong to
// another pod.
func onPodNetwork(pod *corev1.Pod) bool {
	address, err := netip.ParseAddr(pod.Status.PodIP)
	ended := pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed
	return err == nil && address.Is4() && !ended && !pod.Spec.HostNetwork
}

// admitted returns a rule for each kind of connection that the policies allow, and reports whether any policy selects
// the pod. If a policy does, all other connections are refused.
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

// matches returns an nftables expression for each peer and port of a rule.
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

// isPeer reports whether the selectors of a policy in the given namespace select the pod.
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

// matchBlock returns an nftables expression for a block of addresses. It returns "" for a block of IPv6 addresses,
// because no pod in a lab has such an address.
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

// matchPort returns an nftables expression for a port of the pod that serves. A port name refers to one of the pod's
// ports. If the pod has no port with this name, the rule matches nothing, and matchPort returns "".
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
