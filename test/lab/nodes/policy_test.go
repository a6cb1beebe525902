// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package nodes

import (
	"os/exec"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/yaml"
)

// policyPods are two pods of a namespace on this node, a pod on another node, and pods without an address of their own.
const policyPods = `
- {metadata: {namespace: shop, name: web, labels: {app: web}}, spec: {nodeName: here, containers: [{ports: [{name: http, containerPort: 8080}]}]}, status: {podIP: 10.128.1.2}}
- {metadata: {namespace: shop, name: db, labels: {app: db}}, spec: {nodeName: here, containers: [{ports: [{name: sql, containerPort: 5432}, {name: dns, containerPort: 53, protocol: UDP}]}]}, status: {podIP: 10.128.1.3}}
- {metadata: {namespace: blog, name: web, labels: {app: web}}, spec: {nodeName: there, containers: [{ports: [{name: http, containerPort: 80}]}]}, status: {podIP: 10.128.2.2}}
- {metadata: {namespace: shop, name: host, labels: {app: web}}, spec: {nodeName: here, hostNetwork: true}, status: {podIP: 10.90.0.10}}
- {metadata: {namespace: shop, name: ended, labels: {app: web}}, spec: {nodeName: here}, status: {podIP: 10.128.1.9, phase: Succeeded}}
- {metadata: {namespace: shop, name: pending, labels: {app: web}}, spec: {nodeName: here}}
`

// policyCases each have a policy in the namespace shop, and the connections that each chain allows.
func policyCases() map[string]struct{ spec, want string } {
	return map[string]struct{ spec, want string }{
		"none":                                 {"", ""},
		"all of a namespace, nothing admitted": {"{podSelector: {}, policyTypes: [Ingress]}", "to_10.128.1.2: ; to_10.128.1.3: "},
		"one pod":                              {"{podSelector: {matchLabels: {app: db}}, policyTypes: [Ingress]}", "to_10.128.1.3: "},
		"nothing goes out":                     {"{podSelector: {matchLabels: {app: db}}, policyTypes: [Egress]}", "from_10.128.1.3: "},
		"rules of a direction that is not limited": {"{podSelector: {matchLabels: {app: db}}, policyTypes: [Ingress], egress: [{}]}", "to_10.128.1.3: "},
		"all is admitted":                          {"{podSelector: {matchLabels: {app: db}}, policyTypes: [Ingress], ingress: [{}]}", "to_10.128.1.3: return"},
		"pods of the same namespace by label": {
			"{podSelector: {matchLabels: {app: db}}, policyTypes: [Ingress], ingress: [{from: [{podSelector: {matchLabels: {app: web}}}]}]}",
			"to_10.128.1.3: ip saddr 10.128.1.2 return",
		},
		"all pods of namespaces by label": {
			"{podSelector: {matchLabels: {app: db}}, policyTypes: [Ingress], ingress: [{from: [{namespaceSelector: {matchLabels: {team: b}}}]}]}",
			"to_10.128.1.3: ip saddr 10.128.2.2 return",
		},
		"all namespaces": {
			"{podSelector: {matchLabels: {app: db}}, policyTypes: [Ingress], ingress: [{from: [{namespaceSelector: {}, podSelector: {matchLabels: {app: web}}}]}]}",
			"to_10.128.1.3: ip saddr 10.128.1.2 return, ip saddr 10.128.2.2 return",
		},
		"both selectors of one peer, which no pod has": {
			"{podSelector: {matchLabels: {app: db}}, policyTypes: [Ingress], ingress: [{from: [{namespaceSelector: {matchLabels: {team: b}}, podSelector: {matchLabels: {app: db}}}]}]}",
			"to_10.128.1.3: ",
		},
		"addresses, without some": {
			"{podSelector: {matchLabels: {app: db}}, policyTypes: [Ingress], ingress: [{from: [{ipBlock: {cidr: 10.0.0.0/8, except: [10.90.0.0/16, 10.91.0.0/16]}}]}]}",
			"to_10.128.1.3: ip saddr 10.0.0.0/8 ip saddr != { 10.90.0.0/16, 10.91.0.0/16 } return",
		},
		"addresses of IPv6 are no addresses of all": {
			"{podSelector: {matchLabels: {app: db}}, policyTypes: [Ingress], ingress: [{from: [{ipBlock: {cidr: 'fd00::/8'}}]}]}", "to_10.128.1.3: ",
		},
		"ports by number, range, name and protocol": {
			"{podSelector: {matchLabels: {app: db}}, policyTypes: [Ingress], ingress: [{ports: [{port: 80}, {port: 90, endPort: 99}, {port: sql}, {port: dns, protocol: UDP}, {protocol: SCTP}]}]}",
			"to_10.128.1.3: meta l4proto sctp return, tcp dport 5432 return, tcp dport 80 return, tcp dport 90-99 return, udp dport 53 return",
		},
		"a port by a name that the pod has for another protocol": {
			"{podSelector: {matchLabels: {app: db}}, policyTypes: [Ingress], ingress: [{ports: [{port: dns}]}]}", "to_10.128.1.3: ",
		},
		"peers and ports": {
			"{podSelector: {matchLabels: {app: db}}, policyTypes: [Ingress], ingress: [{from: [{podSelector: {matchLabels: {app: web}}}, {ipBlock: {cidr: 10.90.0.1/32}}], ports: [{port: sql}]}]}",
			"to_10.128.1.3: ip saddr 10.128.1.2 tcp dport 5432 return, ip saddr 10.90.0.1/32 tcp dport 5432 return",
		},
		"going out, the named port is that of each pod that serves": {
			"{podSelector: {matchLabels: {app: db}}, policyTypes: [Egress], egress: [{to: [{namespaceSelector: {}, podSelector: {matchLabels: {app: web}}}], ports: [{port: http}]}]}",
			"from_10.128.1.3: ip daddr 10.128.1.2 tcp dport 8080 return, ip daddr 10.128.2.2 tcp dport 80 return",
		},
		"both directions": {
			"{podSelector: {matchLabels: {app: db}}, policyTypes: [Ingress, Egress], ingress: [{}]}", "from_10.128.1.3: ; to_10.128.1.3: return",
		},
	}
}

func policyStateWith(t *testing.T, specs ...string) policyState {
	t.Helper()
	state := policyState{node: "here", namespaces: map[string]labels.Set{"shop": {"team": "a"}, "blog": {"team": "b"}}}
	if err := yaml.UnmarshalStrict([]byte(policyPods), &state.pods); err != nil {
		t.Fatal(err)
	}
	for _, spec := range specs {
		policy := &networkingv1.NetworkPolicy{}
		policy.Namespace, policy.Name = "shop", "a"
		if err := yaml.UnmarshalStrict([]byte(spec), &policy.Spec); err != nil {
			t.Fatal(err)
		}
		state.policies = append(state.policies, policy)
	}
	return state
}

// chainsOf returns the chains for pods in rules, shortened.
func chainsOf(t *testing.T, state policyState) string {
	t.Helper()
	rules, err := state.rules()
	if err != nil {
		t.Fatal(err)
	}
	var chains []string
	for _, part := range strings.Split(rules, "chain ")[1:] {
		lines := strings.Split(part, "\n")
		name := strings.Fields(lines[0])[0]
		if name == "forward" {
			continue
		}
		field := map[bool]string{true: "daddr", false: "saddr"}[strings.HasPrefix(name, "to_")]
		if jump := "ip " + field + " " + name[strings.Index(name, "_")+1:] + " jump " + name + "\n"; !strings.Contains(rules, jump) {
			t.Errorf("nothing leads to %s: %s", name, rules)
		}
		if lines[len(lines)-3] != "reject with icmp type admin-prohibited" {
			t.Errorf("%s does not end with a refusal: %q", name, lines)
		}
		chains = append(chains, name+": "+strings.Join(lines[1:len(lines)-3], ", "))
	}
	return strings.Join(chains, "; ")
}

func TestPolicyRules(t *testing.T) {
	for name, c := range policyCases() {
		t.Run(name, func(t *testing.T) {
			state := policyStateWith(t)
			if c.spec != "" {
				state = policyStateWith(t, c.spec)
			}
			if got := chainsOf(t, state); got != c.want {
				t.Errorf("got  %s\nwant %s", got, c.want)
			}
		})
	}
	t.Run("what one of two policies admits is admitted", func(t *testing.T) {
		state := policyStateWith(t, "{podSelector: {matchLabels: {app: db}}, policyTypes: [Ingress], ingress: [{ports: [{port: 1}]}]}", "{podSelector: {}, policyTypes: [Ingress], ingress: [{ports: [{port: 2}]}]}")
		if got, want := chainsOf(t, state), "to_10.128.1.2: tcp dport 2 return; to_10.128.1.3: tcp dport 1 return, tcp dport 2 return"; got != want {
			t.Errorf("got  %s\nwant %s", got, want)
		}
	})
	t.Run("a policy of another namespace changes nothing", func(t *testing.T) {
		state := policyStateWith(t, "{podSelector: {}, policyTypes: [Ingress, Egress]}")
		state.policies[0].Namespace = "elsewhere"
		if got := chainsOf(t, state); got != "" {
			t.Errorf("got %s, want no chain", got)
		}
	})
	t.Run("the order of pods and policies does not matter", func(t *testing.T) {
		one, two := "{podSelector: {}, policyTypes: [Ingress], ingress: [{from: [{namespaceSelector: {}}]}]}", "{podSelector: {}, policyTypes: [Ingress], ingress: [{ports: [{port: 2}]}]}"
		a, b := policyStateWith(t, one, two), policyStateWith(t, two, one)
		b.pods = append([]*corev1.Pod{b.pods[2], b.pods[1]}, b.pods[0], b.pods[3])
		if first, second := chainsOf(t, a), chainsOf(t, b); first != second {
			t.Errorf("got\n%s\nand\n%s", first, second)
		}
	})
}

func TestNftablesTakesThePolicyRules(t *testing.T) {
	if err := Check(); err != nil {
		t.Skip(err)
	}
	var specs []string
	for _, c := range policyCases() {
		if c.spec != "" {
			specs = append(specs, c.spec)
		}
	}
	rules, err := policyStateWith(t, specs...).rules()
	if err != nil {
		t.Fatal(err)
	}
	nft := exec.CommandContext(t.Context(), "unshare", "--net", "nft", "-f", "-")
	nft.Stdin = strings.NewReader(rules + rules) // the second time it replaces the table
	if out, err := nft.CombinedOutput(); err != nil {
		t.Errorf("%v: %s\nfor\n%s", err, out, rules)
	}
}
