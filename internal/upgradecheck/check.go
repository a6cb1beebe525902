// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package upgradecheck

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/drover-dev/drover/internal/protocol"
)

// The names of the checks.
const (
	// CheckKubernetesVersion finds skipped minor versions and downgrades.
	CheckKubernetesVersion = "KubernetesVersion"
	// CheckKubeletVersion finds kubelets whose version is not supported together with the new version.
	CheckKubeletVersion = "KubeletVersion"
	// CheckNodesReady finds nodes that are not ready.
	CheckNodesReady = "NodesReady"
	// CheckDisruptionBudgets finds PodDisruptionBudgets that allow no eviction.
	CheckDisruptionBudgets = "DisruptionBudgets"
	// CheckAdmissionWebhooks finds webhooks that reject requests and have no ready endpoints.
	CheckAdmissionWebhooks = "AdmissionWebhooks"
	// CheckRemovedAPIs finds uses of APIs that the new version does not serve.
	CheckRemovedAPIs = "RemovedAPIs"
	// CheckNodeCapacity finds nodes whose pods do not fit on the other nodes.
	CheckNodeCapacity = "NodeCapacity"
	// CheckCertificates finds certificates that expire soon.
	CheckCertificates = "Certificates"
)

// Checks returns the names of the checks in the order of their findings.
func Checks() []string {
	return []string{CheckKubernetesVersion, CheckKubeletVersion, CheckNodesReady, CheckDisruptionBudgets,
		CheckAdmissionWebhooks, CheckRemovedAPIs, CheckNodeCapacity, CheckCertificates}
}

const (
	// MaxFindings is the maximum number of findings of a check. The last of them counts the others.
	MaxFindings = 10
	// MaxText is the maximum size of each text of a finding, in bytes.
	MaxText = 512
)

// Finding is a reason why an upgrade is not safe.
type Finding struct {
	// Check is the name of the check.
	Check string `json:"check"`
	// Object is the object, such as "node/worker-1".
	Object string `json:"object"`
	// Cause describes the problem. It contains no numbers that change all the time, so that the status of a Plan is
	// written only if the problem changes.
	Cause string `json:"cause"`
	// Detail contains such numbers. It may be empty.
	Detail string `json:"detail,omitempty"`
	// Remedy says how to fix it.
	Remedy string `json:"remedy"`
	// Unchecked reports whether the check could not read the facts, so the upgrade may or may not be safe.
	Unchecked bool `json:"unchecked,omitempty"`
	// Forbidden reports whether the check had no right to read the facts.
	Forbidden bool `json:"-"`
}

// Check returns the reasons why an upgrade is not safe, in a fixed order. If there are none, the upgrade is safe as far
// as the checks can tell.
func Check(facts *Facts, target *Target) []Finding {
	c := &checker{Facts: facts, target: target}
	var ok bool
	if c.goal, ok = minor(target.Version); !ok {
		return nil
	}
	if c.server, ok = minor(facts.Version); ok {
		c.versions()
		c.kubelets()
	} else {
		c.unchecked(Unread{Check: CheckKubernetesVersion, Object: objectServer,
			Cause: fmt.Sprintf("%q is not a version of Kubernetes", facts.Version)})
	}
	c.nodes()
	c.budgets()
	c.webhooks()
	c.apis()
	c.capacity()
	c.certificates()
	for _, u := range facts.Unread {
		c.unchecked(u)
	}
	return Arrange(c.found)
}

// Arrange sorts findings, and limits their number and their size.
func Arrange(found []Finding) []Finding {
	order := map[string]int{}
	for i, name := range Checks() {
		order[name] = i
	}
	slices.SortFunc(found, func(a, b Finding) int {
		return cmp.Or(cmp.Compare(order[a.Check], order[b.Check]), cmp.Compare(a.Object, b.Object),
			cmp.Compare(a.Cause, b.Cause))
	})
	var kept []Finding
	for i, n := 0, 0; i < len(found); i += n {
		n = 1
		for i+n < len(found) && found[i+n].Check == found[i].Check {
			n++
		}
		some := found[i : i+n]
		if n > MaxFindings {
			last := some[MaxFindings-1]
			last.Object = fmt.Sprintf("and %d more", n-MaxFindings+1)
			some = append(slices.Clone(some[:MaxFindings-1]), last)
		}
		kept = append(kept, some...)
	}
	for i := range kept {
		f := &kept[i]
		f.Object, f.Cause, f.Remedy = protocol.Cut(f.Object, MaxText), protocol.Cut(f.Cause, MaxText),
			protocol.Cut(f.Remedy, MaxText)
	}
	return kept
}

// objectServer is the object of findings about the API server.
const objectServer = "kube-apiserver"

// checker collects findings.
type checker struct {
	*Facts
	target *Target
	// goal and server are the minor versions of the target and of the API server.
	goal, server int
	found        []Finding
}

func (c *checker) add(check, object, cause, remedy string) {
	c.found = append(c.found, Finding{Check: check, Object: object, Cause: cause, Remedy: remedy})
}

// addDetail adds a detail to the finding that was added last.
func (c *checker) addDetail(format string, numbers ...any) {
	c.found[len(c.found)-1].Detail = fmt.Sprintf(format, numbers...)
}

func (c *checker) unchecked(u Unread) {
	remedy := "correct the cause, and check again"
	if u.Forbidden {
		remedy = "get the right to read it in the cluster, or let a user with this right check"
	}
	c.found = append(c.found, Finding{Check: u.Check, Object: u.Object, Cause: "not checked: " + u.Cause, Remedy: remedy,
		Unchecked: true, Forbidden: u.Forbidden})
}
