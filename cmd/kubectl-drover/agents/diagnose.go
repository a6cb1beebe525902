// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package agents

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"regexp"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	appsclient "k8s.io/client-go/kubernetes/typed/apps/v1"
	coreclient "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/cmd/kubectl-drover/cli"
	"github.com/drover-dev/drover/internal/protocol"
)

const (
	// agentPods selects the pods of an agent.
	agentPods = "app.kubernetes.io/name=" + protocol.AgentName
	// logLines and logBytes limit how much of the agent's log is searched for errors.
	logLines, logBytes = 50, 64 << 10
)

// diagnosis inspects a member to determine why its agent does not connect.
type diagnosis struct {
	pods        coreclient.PodInterface
	deployments appsclient.DeploymentInterface
}

func newDiagnosis(config *rest.Config) (*diagnosis, error) {
	core, err := coreclient.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	apps, err := appsclient.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	return &diagnosis{core.Pods(protocol.AgentNamespace), apps.Deployments(protocol.AgentNamespace)}, nil
}

// explain returns the reason why the agent does not connect, or "" if it is not known yet.
func (d *diagnosis) explain(ctx context.Context) string {
	deployment, err := d.deployments.Get(ctx, protocol.AgentName, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return "the Deployment " + protocol.AgentNamespace + "/" + protocol.AgentName + " is gone: run the command again"
	}
	if err != nil {
		return ""
	}
	list, err := d.pods.List(ctx, metav1.ListOptions{LabelSelector: agentPods})
	if err != nil {
		return ""
	}
	if why := refusedPods(deployment, len(list.Items)); why != "" {
		return why
	}
	why, last := "", ""
	if pod := newest(list.Items); pod != nil {
		var started bool
		if why, started = podTrouble(pod); started {
			last = d.lastError(ctx, pod)
		} else if why != "" {
			return why // the error of an earlier pod says nothing about this pod
		}
	}
	// If the agent runs outside the cluster, or if the log of its pod cannot be read, the Deployment may still contain
	// the error.
	if last = cmp.Or(last, notedError(deployment)); last == "" {
		return why
	}
	return strings.TrimPrefix(why+": its last error: "+last, ": ")
}

// newest returns the newest pod that is not being deleted, or nil if there is no such pod.
func newest(pods []corev1.Pod) *corev1.Pod {
	var found *corev1.Pod
	for i := range pods {
		pod := &pods[i]
		if pod.DeletionTimestamp == nil && (found == nil || found.CreationTimestamp.Before(&pod.CreationTimestamp)) {
			found = pod
		}
	}
	return found
}

// notedError returns the error that the agent recorded in its Deployment, with the time of the error and advice. It
// returns "" if the agent is connected, or if its version does not record errors.
func notedError(d *appsv1.Deployment) string {
	text := d.Annotations[v1.AnnotationAgentLastError]
	if text == "" {
		return ""
	}
	return presentable(text + adviceOn(text))
}

// refusedPods returns the reason why a Deployment has no pods, for example a quota or an admission policy.
func refusedPods(d *appsv1.Deployment, pods int) string {
	for _, c := range d.Status.Conditions {
		if c.Type == appsv1.DeploymentReplicaFailure && c.Status == corev1.ConditionTrue && pods == 0 {
			return "the cluster refuses the agent's pod: " + cli.Plain(c.Message)
		}
	}
	return ""
}

// podTrouble returns the reason why a pod of the agent is not running, and whether the pod's container has ever
// started.
func podTrouble(pod *corev1.Pod) (why string, started bool) {
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse {
			return fmt.Sprintf("pod %s is not scheduled: %s", pod.Name, cli.Plain(c.Message)), false
		}
	}
	for _, c := range pod.Status.ContainerStatuses {
		started = started || c.State.Running != nil || c.State.Terminated != nil || c.LastTerminationState.Terminated != nil
		waiting := c.State.Waiting
		switch {
		case waiting == nil:
			continue
		case waiting.Reason == "ContainerCreating" || waiting.Reason == "PodInitializing":
			continue
		case strings.Contains(waiting.Reason, "Image"):
			return fmt.Sprintf("the image %s cannot be pulled: %s: %s: set agent.image in the manager's configuration, or "+
				"check the registry", cli.Plain(c.Image), waiting.Reason, cli.Plain(waiting.Message)), false
		}
		why = fmt.Sprintf("pod %s does not run: %s: %s", pod.Name, waiting.Reason, cli.Plain(waiting.Message))
		if ended := c.LastTerminationState.Terminated; ended != nil {
			why += fmt.Sprintf(": it ended with code %d, %s", ended.ExitCode, cmp.Or(ended.Reason, "Error"))
			if ended.Message != "" {
				why += ": " + presentable(ended.Message)
			}
		}
	}
	return why, started
}

// lastError returns the last error in the agent's log, together with advice. It returns "" if the log contains no
// errors.
func (d *diagnosis) lastError(ctx context.Context, pod *corev1.Pod) string {
	lines, size := int64(logLines), int64(logBytes)
	log, err := d.pods.GetLogs(pod.Name, &corev1.PodLogOptions{TailLines: &lines, LimitBytes: &size}).Stream(ctx)
	if err != nil {
		return ""
	}
	defer log.Close()
	raw, _ := io.ReadAll(io.LimitReader(log, logBytes)) // a partial log is better than none
	return lastErrorOf(raw)
}

type logLine struct {
	Level  string `json:"level"`
	Msg    string `json:"msg"`
	Error  string `json:"error"`
	Reason string `json:"reason"`
	// Message is the hub's explanation of a refusal.
	Message string `json:"message"`
}

// userinfo matches the user and password in a URL, such as a proxy URL in an error message. A password may contain any
// character except white space and quotation marks, because those characters end the URL.
var userinfo = regexp.MustCompile(`://[^\s"]*@`)

// lastErrorOf returns the last error in a log, or "" if the agent has connected since then.
func lastErrorOf(log []byte) string {
	last := ""
	for lines := bufio.NewScanner(bytes.NewReader(log)); lines.Scan(); {
		var line logLine
		if json.Unmarshal(lines.Bytes(), &line) != nil {
			continue
		}
		switch {
		case line.Msg == "refused by the hub":
			last = "the hub refuses it: " + line.Reason + ": " + line.Message
		case line.Level == "error" || line.Level == "fatal":
			last = line.Msg + ": " + line.Error + adviceOn(line.Error)
		case strings.HasPrefix(line.Msg, "connected"):
			last = ""
		}
	}
	return presentable(last)
}

// maxError is the maximum length of an error, in bytes. Errors come from the member, so they can be arbitrarily long.
const maxError = 2 << 10

// presentable removes control characters and the passwords in URLs from a text written by the agent.
func presentable(text string) string {
	return protocol.Cut(cli.Plain(userinfo.ReplaceAllString(text, "://***@")), maxError)
}

// Advice for errors that occur when the agent connects to the hub.
const (
	foreign   = "a proxy between the cluster and the hub replaces the certificate, or another server has its address"
	firewalls = "check server.urls in the manager's configuration, that the hub is exposed there, and firewalls"
)

// adviceOn returns advice for an error that occurred when the agent connected to the hub.
func adviceOn(text string) string {
	for _, a := range []struct{ sign, advice string }{
		{"not yet valid", "compare the clocks of the cluster's nodes and of the hub"},
		{"has expired", "compare the clocks of the cluster's nodes and of the hub, or renew the hub's certificate"},
		{"x509", foreign},
		{"tls:", foreign},
		{"no such host", "the cluster's DNS does not know the hub: check server.urls in the manager's configuration"},
		{"server misbehaving", "the cluster's DNS does not answer"},
		{"connection refused", firewalls},
		{"timeout", firewalls},
		{"deadline exceeded", firewalls},
		{"unreachable", "check server.urls in the manager's configuration, and the routes of the cluster's nodes"},
	} {
		if strings.Contains(text, a.sign) {
			return ": " + a.advice
		}
	}
	return ""
}
