// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package hosts

import (
	"bytes"
	"io"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/cmd/kubectl-drover/cli"
	"github.com/drover-dev/drover/internal/owned"
	"github.com/drover-dev/drover/internal/registration"
	"github.com/drover-dev/drover/test/testkit"
)

// hostIn returns a Host of team-a with a condition Ready.
func hostIn(name string, state v1.HostState, status metav1.ConditionStatus, reason, message string) *v1.Host {
	return &v1.Host{ObjectMeta: metav1.ObjectMeta{Namespace: "team-a", Name: name}, Status: v1.HostStatus{
		State: state, Conditions: []metav1.Condition{{Type: v1.ConditionReady, Status: status, Reason: reason, Message: message}}}}
}

func secretOf(name string, data map[string][]byte) *corev1.Secret {
	return &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "team-a", Name: name}, Data: data}
}

// joinSecretOf returns the Secret that Drover creates for a Host.
func joinSecretOf(host *v1.Host, command string) *corev1.Secret {
	secret := owned.NewSecret(registration.ApplyHostSecret(host, registration.Token{}, command))
	secret.StringData = nil
	return secret
}

func hostHub(t *testing.T, objects ...client.Object) *cli.Hub {
	t.Helper()
	return &cli.Hub{WithWatch: fake.NewClientBuilder().WithScheme(testkit.Scheme(t)).WithObjects(objects...).Build(), Workspace: "team-a"}
}

func TestHostsAreListedWithWhatIsWrong(t *testing.T) {
	t.Parallel()
	failed := hostIn("rack2", v1.HostInstalling, metav1.ConditionFalse, v1.ReasonInstructionFailed, "install: exit code 3\x1b[2J")
	failed.Status.Machine = &v1.HostMachine{HostProperties: v1.HostProperties{OS: "Debian 12", Architecture: "amd64"}}
	failed.Status.Progress = &v1.HostProgress{
		Done: 1, Total: 3, Instruction: "install", Output: "E: no space left\x1b[2J\nbye",
	}
	failed.Spec.ConsumerRef = &v1.HostConsumerRef{Kind: "Cluster", Name: "prod"}
	held := hostIn("rack3", v1.HostActive, metav1.ConditionTrue, v1.ReasonActive, "")
	held.Status.Conditions = append(held.Status.Conditions, metav1.Condition{Type: v1.ConditionRestoreConfirmed, Status: metav1.ConditionFalse, Reason: v1.ReasonHubRestored, Message: "it would be cleaned"})
	h := hostHub(t, hostIn("rack1", v1.HostAvailable, metav1.ConditionTrue, v1.ReasonHostAvailable, "the host has no instructions"), failed, held)
	list, err := readHosts(t.Context(), h)
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(list.Text(), "\n")
	for i, want := range [][]string{{"WORKSPACE"}, {"team-a", "rack1", "Available", "True"}, {"rack2", "Installing", "False", "InstructionFailed", "Cluster/prod", "Debian 12", "amd64", "exit code 3"}, {"rack3", "Active", "HubRestored", "would be cleaned"}} {
		for _, word := range want {
			if !strings.Contains(lines[i], word) || strings.Contains(lines[i], "\x1b") {
				t.Errorf("line %d is %q, want %q in it", i, lines[i], word)
			}
		}
	}
	text := describeHost(failed)
	for _, want := range []string{"team-a/rack2: Installing", "Used by Cluster prod", "InstructionFailed: install: exit code 3", "1 of 3 done, now install", "E: no space left"} {
		if !strings.Contains(text, want) || strings.Contains(text, "\x1b") {
			t.Errorf("%q is not in %q", want, text)
		}
	}
}

func TestTheCommandForAMachineIsPrinted(t *testing.T) {
	t.Parallel()
	awaiting := func(name string) *v1.Host {
		host := hostIn(name, v1.HostWaitingToRegister, metav1.ConditionFalse, v1.ReasonAwaitingAgent, "run the command")
		host.UID = types.UID("uid-of-" + name)
		return host
	}
	late := hostIn("late", v1.HostWaitingToRegister, metav1.ConditionFalse, v1.ReasonTokenExpired, "delete Secret late-host-join")
	former := joinSecretOf(awaiting("former"), "rm -rf /")
	former.OwnerReferences[0].UID = "uid-of-another"
	relabelled := joinSecretOf(awaiting("relabelled"), "rm -rf /")
	relabelled.Labels[v1.LabelHost] = "free"
	h := hostHub(t, awaiting("free"), joinSecretOf(awaiting("free"), "curl it"), late, joinSecretOf(late, "curl it"),
		hostIn("taken", v1.HostAvailable, metav1.ConditionTrue, v1.ReasonHostAvailable, ""),
		awaiting("planted"), secretOf("planted-host-join", map[string][]byte{registration.KeyCommand: []byte("rm -rf /")}),
		awaiting("former"), former, awaiting("relabelled"), relabelled)
	for name, want := range map[string]string{"free": "", "taken": "a machine has already joined", "late": "TokenExpired: delete Secret late-host-join", "No.Name": "cannot have the name",
		"planted":    "planted-host-join was not created by Drover: it lacks the label cluster.drover.dev/host=",
		"former":     `it belongs to the object with the UID "uid-of-another", but Drover's Secret belongs to the Host, which has the UID uid-of-former`,
		"relabelled": `its label cluster.drover.dev/host has the value "free", but Drover's Secret has relabelled`} {
		var out bytes.Buffer
		err := joinHost(t.Context(), h, name, "", printer{&out, io.Discard})
		if want == "" && (err != nil || out.String() != "curl it\n") || want != "" && (err == nil || !strings.Contains(err.Error(), want) || out.Len() > 0) {
			t.Errorf("%s: %v, printed %q, want %q", name, err, out.String(), want)
		}
	}
}

func TestAHostIsGivenBackOnlyIfThatIsSaid(t *testing.T) {
	t.Parallel()
	plan := secretOf("rack1-host-plan", nil)
	h := hostHub(t, plan, hostIn("rack1", v1.HostAvailable, metav1.ConditionTrue, v1.ReasonHostAvailable, ""))
	gone := func(o client.Object) bool {
		t.Helper()
		err := h.Get(t.Context(), client.ObjectKeyFromObject(o), o)
		if client.IgnoreNotFound(err) != nil {
			t.Fatal(err)
		}
		return apierrors.IsNotFound(err)
	}
	host := hostIn("rack1", "", "", "", "")
	taken := hostIn("rack2", v1.HostActive, metav1.ConditionTrue, v1.ReasonActive, "")
	taken.Spec.ConsumerRef = &v1.HostConsumerRef{Kind: "Cluster", Name: "prod"}
	if err := h.Create(t.Context(), taken); err != nil {
		t.Fatal(err)
	}
	if err := cleanHost(t.Context(), h, "rack2", true, io.Discard); err == nil || !strings.Contains(err.Error(), "Cluster prod uses Host team-a/rack2") {
		t.Errorf("clean one that is taken: %v, want a refusal", err)
	}
	if err := releaseHost(t.Context(), h, "rack2", releasing{}, io.Discard); err == nil || !strings.Contains(err.Error(), "which Cluster prod loses") {
		t.Errorf("delete one that is taken: %v", err)
	}
	for _, err := range []error{
		cleanHost(t.Context(), h, "rack1", false, io.Discard),
		releaseHost(t.Context(), h, "rack1", releasing{orphan: true}, io.Discard),
	} {
		if err == nil || !strings.Contains(err.Error(), "nothing was changed") {
			t.Errorf("without --yes: %v", err)
		}
	}
	if gone(plan) || gone(host) || host.Spec.DeletionPolicy == v1.HostOrphan {
		t.Errorf("without --yes something has changed: %+v", host.Spec)
	}
	if err := cleanHost(t.Context(), h, "rack1", true, io.Discard); err != nil || !gone(plan) || gone(host) {
		t.Errorf("clean: %v, want the plan gone, and the Host there", err)
	}
	if err := releaseHost(t.Context(), h, "rack1", releasing{yes: true, orphan: true}, io.Discard); err != nil || !gone(host) {
		t.Errorf("release: %v, want the Host gone", err)
	}
}
