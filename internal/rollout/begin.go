// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package rollout

import (
	"cmp"
	"fmt"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	v1 "github.com/drover-dev/drover/api/v1"
)

type tally struct {
	total, complete   int
	applying, waiting int // nodes with work in progress, including nodes between two attempts
	settling, failed  int
	former            int // waiting nodes that failed permanently with an earlier version of the plan
	unready           int
	places            int   // slots that are taken
	tainted           int   // nodes that are unready and cannot start only because of a taint
	foreign           int   // selected nodes that are omitted because they cannot run the plan's pods
	next              *Node // the first node that could start
	first             obstacles
}

// obstacles contains the first node or plan of each kind that prevents nodes from starting.
type obstacles struct {
	failedNode, unreadyNode string
	lostNode                string // a node that is complete but no longer ready
	silentNode              string // a node that is in progress but not ready
	stuckNode               string // a node that is waiting for its kubelet
	taintedNode, taint      string // a node with a taint that the plan does not tolerate
	foreignNode, foreignOS  string // a node that cannot run the plan's pods
	waitingNode, waitingFor string // a node whose pod has not started
	rival, rivalNode        string // another plan that is in progress on the node
	exclusive               string // another exclusive plan that is in progress
}

func (v *view) count() tally {
	t := tally{total: v.Omitted.Total, complete: v.Omitted.Complete}
	for i := range v.Nodes {
		n := &v.Nodes[i]
		if t.first.exclusive == "" && v.plan.Spec.Exclusive {
			t.first.exclusive = v.otherExclusive(n)
		}
		if c, ok := v.claim(n); ok {
			v.tally(&t, n, c)
			if v.wanted(n) {
				t.total++
				if c.Done != nil {
					t.complete++
				}
			}
			continue
		}
		if !v.wanted(n) {
			if v.selected(n) {
				t.foreign++
				t.first.foreignNode, t.first.foreignOS = cmp.Or(t.first.foreignNode, n.Name), cmp.Or(t.first.foreignOS, n.OS)
			}
			continue
		}
		t.total++
		if n.Labels[v.label] == v.plan.Hash {
			t.complete++
			if !n.Ready {
				t.places++
				t.first.lostNode = cmp.Or(t.first.lostNode, n.Name)
			}
			continue
		}
		v.candidate(&t, n)
	}
	return t
}

// tally counts a node that has a claim. A node that has permanently failed with an earlier version of the plan starts
// again.
func (v *view) tally(t *tally, n *Node, c Claim) {
	t.places++
	switch {
	case c.Done != nil:
		t.settling++
	case c.Failure != nil && c.Failure.Final && !v.changed(c):
		t.failed++
		t.first.failedNode = cmp.Or(t.first.failedNode, n.Name)
	case v.stuck(n, c):
		t.failed++
		t.first.stuckNode = cmp.Or(t.first.stuckNode, n.Name)
	case c.Failure == nil:
		t.applying++
		if !n.Ready {
			t.first.silentNode = cmp.Or(t.first.silentNode, n.Name)
		} else if why := v.pending(n, c); why != "" && t.first.waitingNode == "" {
			t.first.waitingNode, t.first.waitingFor = n.Name, why
		}
	default:
		t.waiting++
		if taint := v.taint(n); taint != "" && t.first.taint == "" {
			t.first.taintedNode, t.first.taint = n.Name, taint
		}
		if c.Failure.Final {
			t.former++
		}
	}
}

// candidate counts a node that has not started yet.
func (v *view) candidate(t *tally, n *Node) {
	if !n.Ready || n.Leaving {
		t.unready++
		t.first.unreadyNode = cmp.Or(t.first.unreadyNode, n.Name)
		return
	}
	if taint := v.taint(n); taint != "" {
		t.unready++
		if t.tainted++; t.first.taint == "" {
			t.first.taintedNode, t.first.taint = n.Name, taint
		}
		return
	}
	if rival := v.taken(n); rival != "" {
		if t.first.rival == "" {
			t.first.rival, t.first.rivalNode = rival, n.Name
		}
		return
	}
	if t.next == nil {
		t.next = n
	}
}

// taken returns the name of another plan that is in progress on a node. A plan that has permanently failed does not
// block other plans.
func (v *view) taken(n *Node) string {
	rival := ""
	for plan, c := range n.Claims {
		mine := plan == v.plan.Name && c.UID == v.plan.UID
		if !mine && (c.Failure == nil || !c.Failure.Final) && (rival == "" || plan < rival) {
			rival = plan
		}
	}
	return rival
}

func (v *view) otherExclusive(n *Node) string {
	if rival := v.taken(n); rival != "" && n.Claims[rival].Exclusive {
		return rival
	}
	return ""
}

// begin returns the next node to start, or the reason why no node can start.
func (v *view) begin() (*Node, Wait) {
	t := v.count()
	limit := concurrency(v.plan.Spec.Concurrency, t.total)
	gate := v.gate()
	w, refusal := Wait{}, v.refusal()
	switch may := t.next != nil && gate == nil && t.failed == 0 && t.first.exclusive == "" && t.places < limit; {
	case may && refusal == nil:
		return t.next, Wait{}
	case may:
		w = *refusal
	default:
		if w = v.reason(&t, gate); v.plan.probed && refusal != nil && opensLater(w.Reason) {
			w = *refusal // the hub would take any other reason for the end of the refusal
		}
	}
	if left := t.foreignNodes(); left != "" {
		w.Message += "; " + left
	}
	w.Until = v.until
	return nil, w
}

// opensLater reports whether a reason to wait can disappear without a change to the plan or to a node in progress.
func opensLater(reason string) bool {
	return reason == v1.ReasonHeld || reason == v1.ReasonAwaitingWindow || reason == v1.ReasonAwaitingNodes ||
		reason == v1.ReasonAwaitingSlot
}

// reason returns the reason to wait. If there are several, it returns the one for which user action is most urgent.
func (v *view) reason(t *tally, gate *Wait) Wait {
	switch {
	case t.first.stuckNode != "":
		return Wait{Reason: v1.ReasonNodeFailed,
			Message: fmt.Sprintf("node %s is at work and not ready, and is not retried while "+
				"its last pod may still run: repair the node, or remove it from the cluster", t.first.stuckNode)}
	case t.failed > 0:
		return Wait{Reason: v1.ReasonNodeFailed,
			Message: fmt.Sprintf("%s failed and has no attempt left: see status.failures, "+
				"and retry the plan, or change it", counted(t.failed, t.first.failedNode))}
	case t.total == 0 && t.places == 0:
		return Wait{Reason: v1.ReasonNoNodes, Message: "no node is selected"}
	case t.total == t.complete && t.applying+t.waiting+t.settling == 0:
		return Wait{Reason: v1.ReasonComplete, Message: fmt.Sprintf("%s complete", counted(t.complete, ""))}
	case gate != nil && gate.Reason == v1.ReasonPaused:
		return *gate
	case t.applying > 0:
		w := Wait{Reason: v1.ReasonApplying,
			Message: fmt.Sprintf("%d of %d complete, %d at work", t.complete, t.total, t.applying)}
		if t.first.silentNode != "" {
			w.Message += fmt.Sprintf("; node %s is not ready: if it does not come back, repair or remove it", t.first.silentNode)
		}
		if t.first.waitingNode != "" {
			w.Message += fmt.Sprintf("; node %s: %s", t.first.waitingNode, t.first.waitingFor)
		}
		return w
	case gate != nil && t.settling == 0:
		return *gate
	case t.waiting > 0:
		w := Wait{Reason: v1.ReasonAwaitingRetry,
			Message: fmt.Sprintf("%s waiting for the next attempt: see status.failures", counted(t.waiting, ""))}
		if t.first.taint != "" {
			w.Message += "; " + v.untolerated(t)
		}
		return w
	case t.settling > 0:
		return Wait{Reason: v1.ReasonSettling, Message: "a node is complete and keeps its slot for postCompleteDelay"}
	case t.first.exclusive != "":
		return Wait{Reason: v1.ReasonAwaitingSlot, Message: fmt.Sprintf("exclusive plan %s is at work", t.first.exclusive)}
	case t.first.lostNode != "":
		return Wait{Reason: v1.ReasonAwaitingNodes,
			Message: fmt.Sprintf("node %s is complete and has not become ready again: "+
				"repair it, or label it %s=disabled", t.first.lostNode, v.label)}
	case t.first.rival != "":
		message := fmt.Sprintf("plan %s is at work on node %s", t.first.rival, t.first.rivalNode)
		return Wait{Reason: v1.ReasonAwaitingSlot, Message: message}
	case t.tainted > 0:
		return Wait{Reason: v1.ReasonAwaitingNodes, Message: v.untolerated(t)}
	}
	return Wait{Reason: v1.ReasonAwaitingNodes, Message: fmt.Sprintf("%s not ready: repair it, or label it %s=disabled",
		counted(t.unready, t.first.unreadyNode), v.label)}
}

// concurrency returns on how many of the total number of nodes the plan may be in progress at the same time. The result
// is at least one.
func concurrency(spec *intstr.IntOrString, total int) int {
	if spec == nil {
		return 1
	}
	limit, err := intstr.GetScaledValueFromIntOrPercent(spec, total, false)
	if err != nil {
		return 1 // the schema rejects values that cannot be parsed, and 1 is the safest choice
	}
	return max(limit, 1)
}

func duration(d *metav1.Duration, otherwise time.Duration) time.Duration {
	if d == nil {
		return otherwise
	}
	return d.Duration
}

// counted returns the name if n is 1, such as "node a", and the number of nodes otherwise, such as "3 nodes".
func counted(n int, name string) string {
	if n == 1 && name != "" {
		return "node " + name
	}
	if n == 1 {
		return "1 node"
	}
	return fmt.Sprintf("%d nodes", n)
}
