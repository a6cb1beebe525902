// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/protocol"
)

const (
	// readyLimit is how long a Cluster may take to become Ready. It usually takes a second or two, and a little
	// longer after a crash.
	readyLimit = 2 * time.Minute
	// stalledLimit is how long a Cluster may be Stalled. The condition may have been set before the agent was
	// started.
	stalledLimit = 20 * time.Second
)

// awaitReady waits until the Clusters are Ready and the member responds to the user demo. It prints the conditions
// that it is waiting for.
func (d *demo) awaitReady(ctx context.Context) (string, error) {
	path := d.files.kubeconfig(proxy)
	if err := d.writeProxyKubeconfig(ctx, path); err != nil {
		return "", err
	}
	if err := d.eachManaged(ctx, d.awaitCluster); err != nil {
		return "", err
	}
	// The Ready condition may have been set before a crash.
	return "", await(ctx, readyLimit, func(ctx context.Context) error { return answers(ctx, path, "/api/v1/namespaces") })
}

func (d *demo) awaitCluster(ctx context.Context, m managed) error {
	start, shown := time.Now(), ""
	return await(ctx, readyLimit, func(ctx context.Context) error {
		if err := d.alive(d.processes()...); err != nil {
			return permanentError{err}
		}
		cluster := &v1.Cluster{}
		if err := d.hub.client.Get(ctx, m.name, cluster); err != nil {
			return err
		}
		ready, reason := judge(cluster)
		if reason != shown {
			shown = reason
			d.out.note("%4.1fs  %s: %s", time.Since(start).Seconds(), m.name.Name, reason)
		}
		switch stalled := meta.IsStatusConditionTrue(cluster.Status.Conditions, v1.ConditionStalled); {
		case stalled && time.Since(start) > stalledLimit:
			return permanentError{errors.New(shown + "\nrun \"make demo-down\" to start afresh")}
		case !ready:
			return fmt.Errorf("%s; the end of the agent's log:\n%s", shown, d.agentLog(ctx, m))
		}
		return nil
	})
}

// judge reports whether a Cluster is Ready now. It returns the reason in one line.
func judge(cluster *v1.Cluster) (bool, string) {
	c := meta.FindStatusCondition(cluster.Status.Conditions, v1.ConditionReady)
	if c == nil {
		return false, "waiting for the manager"
	}
	return c.Status == metav1.ConditionTrue && c.ObservedGeneration == cluster.Generation, c.Reason + ": " + c.Message
}

// processes returns the names of Drover's programs that run as processes on this machine.
func (d *demo) processes() []string {
	if d.state.Nodes == realNodes {
		return []string{manager}
	}
	return []string{manager, agent, hubAgent}
}

// agentLog returns the end of an agent's log. If the log cannot be read, it returns the reason.
func (d *demo) agentLog(ctx context.Context, m managed) string {
	if d.state.Nodes != realNodes {
		return tail(d.files.log(m.agent))
	}
	log, err := d.kubectl(ctx, "--kubeconfig", m.plane.kubeconfig, "-n", protocol.AgentNamespace,
		"logs", "deployment/"+protocol.AgentName, "--tail=12")
	if err != nil {
		return err.Error()
	}
	return log
}

// alive returns an error if one of the programs has exited. The error contains the end of the program's log.
func (d *demo) alive(names ...string) error {
	for _, name := range names {
		if !d.running(name) {
			log := d.files.log(name)
			return fmt.Errorf("the %s has ended; run \"make demo\" again to start it; the end of %s:\n%s", name, d.files.short(log), tail(log))
		}
	}
	return nil
}

// writeProxyKubeconfig writes a kubeconfig for the user demo. The kubeconfig connects to the member through the hub.
func (d *demo) writeProxyKubeconfig(ctx context.Context, path string) error {
	bundle, err := d.hubBundle(ctx)
	if err != nil {
		return err
	}
	name := clusterName()
	return access{
		name: member, user: "demo", server: d.url() + "/k8s/clusters/" + name.Namespace + "/" + name.Name, ca: bundle, bearerToken: d.state.DemoToken,
	}.write(path)
}

// summarize prints the running components in the form that kubectl shows. It also prints suggestions for what to try
// next.
func (d *demo) summarize(ctx context.Context) error {
	for _, line := range []string{
		"--kubeconfig .demo/hub.kubeconfig get clusters -A", "--kubeconfig .demo/proxy.kubeconfig get namespaces",
	} {
		output, err := d.kubectl(ctx, strings.Fields(line)...)
		if err != nil {
			return err
		}
		fmt.Fprintf(d.out, "\n$ .demo/bin/kubectl %s\n%s", line, output)
	}
	users, err := d.usersRemark()
	if err != nil {
		return err
	}
	text := []string{firstLines, simulatedLines, lastLines, simulatedRemark}
	if d.state.Nodes == realNodes {
		text = []string{firstLines, realLines, lastLines, realRemark}
	}
	_, err = io.WriteString(d.out, strings.Join(append(text, users), ""))
	return err
}

// usersRemark returns text that lists the users who can sign in, and the URL.
func (d *demo) usersRemark() (string, error) {
	var text strings.Builder
	fmt.Fprintf(&text, "\nSign in at %s/ui/ with a browser, which does not know the certificate:\n\n", d.url())
	for _, p := range people() {
		secret, err := d.readPassword(p.name)
		if err != nil {
			return "", err
		}
		fmt.Fprintf(&text, "  %-6s %s   # %s\n", p.name, secret, p.role)
	}
	fmt.Fprintf(&text, loginLines, d.url())
	return text.String(), nil
}

// Suggestions for what to try next.
const (
	loginLines = `
The page shows the fleet, and the Plan os-update at work on the member's nodes (docs/guide/page.md). With kubectl:

  export PATH=$PWD/.demo/bin:$PATH KUBECONFIG=$PWD/.demo/login.kubeconfig
  kubectl drover login %s --ca .demo/hub-ca.crt
  kubectl drover use member
`
	firstLines = `
The last answer came from the member, through the hub, as user demo. Next, for example:

  export PATH=$PWD/.demo/bin:$PATH KUBECONFIG=$PWD/.demo/proxy.kubeconfig
  kubectl auth whoami                              # who you are in the member
  kubectl create configmap hello --from-literal=from=hub
  kubectl --kubeconfig .demo/member.kubeconfig get configmap hello    # the same, seen without the hub
  kubectl --kubeconfig .demo/hub.kubeconfig describe cluster member
  KUBECONFIG=$PWD/.demo/hub.kubeconfig:$KUBECONFIG kubectl drover who-can create configmaps --cluster member
`
	simulatedLines = `  kill $(cat .demo/pids/agent.pid); kubectl --kubeconfig .demo/hub.kubeconfig get clusters
`
	realLines = `  kubectl create deployment web --image=example.com/web:1 && kubectl rollout status deployment/web
  kubectl exec deployment/web -- get http://localhost:8080    # a command in a pod of the member, through the hub
  kubectl logs deployment/web
  kubectl -n drover-agent logs deployment/drover-agent        # the agent is a pod of the member
`
	lastLines = `  make demo                                        # heals it
  make demo-down                                   # stops and removes everything
`
	simulatedRemark = `
The member's nodes are simulated: pods of plans are only marked as running and done (docs/guide/plans.md), other pods stay Pending; the agent runs as a process
here. Logs are in .demo/logs.
`
	realRemark = `
Hub and member have a real node each, and the agent is a pod, as in any member; the manager runs as a process here. Nodes reach no registry: they have the images
example.com/web:1 and, for plans (docs/guide/plans.md), example.com/upgrade. Logs of the manager are in .demo/logs.
`
)
