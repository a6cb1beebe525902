// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package host reconciles Host.
//
// It handles the whole lifecycle of a machine: joining, instructions, progress, cleanup and release.
package host

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/members"
	"github.com/drover-dev/drover/internal/owned"
	"github.com/drover-dev/drover/internal/protocol"
	"github.com/drover-dev/drover/internal/registration"
	"github.com/drover-dev/drover/internal/status"
)

// removalTime is how long the deletion of a Host waits for an agent that is not connected.
const removalTime = 20 * time.Second

// Reconciler reconciles Hosts.
type Reconciler struct {
	// Client writes objects and reads them from the cache. Live reads from the API server.
	status.Output
	Live    client.Reader
	Members members.Reconciled
	// Settings returns the settings that agents should have.
	Settings func() protocol.Settings
	// Trust determines how agents verify the hub.
	Trust v1.Trust
	History
	// Settled reports whether agents have had time to reconnect since this manager began to accept tunnels. A missing
	// agent does not count as lost until Settled returns true.
	Settled func() bool

	written status.Written[*v1.Host]
}

// Member returns the member name of a Host.
func Member(host types.NamespacedName) types.NamespacedName {
	return types.NamespacedName{Namespace: host.Namespace, Name: protocol.HostMember(host.Name)}
}

// OfMembers adapts a source of member names for Hosts. The adapted source passes on only the names of Hosts.
func OfMembers(on func(func(types.NamespacedName))) func(func(types.NamespacedName)) {
	return func(wake func(types.NamespacedName)) {
		on(func(member types.NamespacedName) {
			if name, ok := protocol.HostOf(member.Name); ok {
				wake(types.NamespacedName{Namespace: member.Namespace, Name: name})
			}
		})
	}
}

// Handler enqueues the Host that a Secret belongs to.
func Handler() handler.EventHandler {
	return handler.EnqueueRequestsFromMapFunc(func(_ context.Context, object client.Object) []reconcile.Request {
		if name := object.GetLabels()[v1.LabelHost]; name != "" {
			return []reconcile.Request{{NamespacedName: types.NamespacedName{Namespace: object.GetNamespace(), Name: name}}}
		}
		return nil
	})
}

// input contains everything that a reconcile has read and decided so far.
type input struct {
	host   *v1.Host
	member types.NamespacedName
	now    time.Time
	term   string
	// settling is true if a missing agent may still reconnect after a restart of the manager or after many agents were
	// lost at the same time.
	settling bool

	secret   *corev1.Secret              // Secret with the join token; nil if it does not exist
	foreign  bool                        // whether another Secret has the name of the join Secret
	identity *registration.AgentIdentity // nil if no agent has joined
	state    members.State
	token    registration.Token

	// version is the version of the instructions that the host must have, or empty if the host must not have
	// instructions. invalid describes the problem with invalid instructions.
	version, invalid string
	// call is the call that sends the instructions. It is zero if the host already has the right instructions.
	call members.Call
	err  error // error from register
	// held is the change that is waiting for an administrator's confirmation, or nil if no change is waiting.
	held *v1.RestoreStatus
	// owner is the owner of the instructions on the hub. It is set only if changes to the host are held back, and is
	// nil if the owner is unknown.
	owner *string
}

// report returns the host's report, or nil if the host has not sent one.
func (in *input) report() *protocol.HostReport {
	if !in.state.Connected() || in.state.Report == nil {
		return nil
	}
	return in.state.Report.Host
}

// +kubebuilder:rbac:groups=cluster.drover.dev,resources=hosts,verbs=get;list;watch;update;patch
// +kubebuilder:rbac:groups=cluster.drover.dev,resources=hosts/status,verbs=get;update;patch

// Reconcile creates the join token of one Host, sends settings and instructions to the Host's agent, and writes the
// Host's status.
func (r *Reconciler) Reconcile(ctx context.Context, req ctrl.Request) (_ ctrl.Result, err error) {
	host, found, err := r.written.Get(ctx, r.Client, req.NamespacedName, &v1.Host{})
	if err != nil || !found {
		return ctrl.Result{}, err
	}
	update := status.Begin(host)
	defer func() {
		err = errors.Join(err, r.written.Commit(ctx, r.Output, update))
	}()
	in, err := r.gather(ctx, host)
	if err != nil {
		return ctrl.Result{}, err
	}
	deleted := !host.DeletionTimestamp.IsZero()
	if deleted && len(in.inUse()) == 0 {
		return r.remove(ctx, in, update)
	}
	if !deleted && !slices.Contains(host.Finalizers, v1.FinalizerUninstall) {
		return ctrl.Result{}, owned.SetFinalizer(ctx, r.Client, host, v1.FinalizerUninstall, controllerutil.AddFinalizer)
	}
	if in.err = r.register(ctx, in, update); in.err == nil {
		in.err = r.handOver(ctx, in)
	}
	writeStatus(in)
	writeHeld(in, update)
	return ctrl.Result{RequeueAfter: in.lookAgain()}, in.err
}

// gather reads everything that a reconcile depends on.
func (r *Reconciler) gather(ctx context.Context, host *v1.Host) (*input, error) {
	member := Member(client.ObjectKeyFromObject(host))
	in := &input{host: host, member: member, now: r.Now(), state: r.Members.State(member), term: r.Term()}
	in.settling = !r.Settled() || in.now.Before(in.state.Returning)
	var err error
	if in.secret, in.foreign, err = registration.SecretOf(ctx, r.Client, host); err == nil {
		in.identity, err = registration.AgentOf(ctx, r.Client, host)
	}
	if err == nil && in.identity == nil { // the cache might not contain a very recent join yet
		in.identity, err = registration.AgentOf(ctx, r.Live, host)
	}
	if err != nil {
		return nil, err
	}
	secret, err := owned.ReadSecret(ctx, r.Client, secretName(host))
	if err == nil && holdsInstructions(secret, host) {
		in.version = version(secret)
	}
	return in, err
}

// register writes the Secret with the join token and the join command.
func (r *Reconciler) register(ctx context.Context, in *input, update *status.Update) error {
	made := false
	// the cache might not contain a token that was just created
	if in.token, made = decideToken(in); in.secret == nil || made {
		var err error
		if in.secret, in.foreign, err = registration.SecretOf(ctx, r.Live, in.host); err != nil || in.foreign {
			return err // the status reports the foreign Secret
		}
		in.token, made = decideToken(in)
	}
	settings := r.Settings()
	command, err := registration.HostCommand(settings.Servers[0], in.token.Value, r.Trust, settings.CABundle)
	if err != nil {
		return err
	}
	want := registration.ApplyHostSecret(in.host, in.token, command)
	if in.secret != nil && registration.UpToDate(in.secret, want) {
		return nil
	}
	if err := owned.WriteSecret(ctx, r.Client, in.secret, want); err != nil {
		return fmt.Errorf("write Secret %s: %w", registration.RegistrationSecret(in.member), err)
	}
	if made && in.identity == nil {
		update.Event(status.Event{
			Reason: v1.ReasonTokenCreated, Action: "CreateToken", Message: in.token.Announcement(in.host),
		})
	}
	return nil
}

// decideToken returns the token in force, and reports whether the token is new. A token stays in force until its Secret
// is deleted. If the agent that used the token has been revoked, the token is replaced.
func decideToken(in *input) (registration.Token, bool) {
	token, made := registration.TokenOf(in.secret, in.host), false
	if !registration.ValidToken(token.Value) || token.Created.IsZero() || token.Used && in.identity == nil {
		token, made = registration.Token{
			Value: registration.NewToken(), Created: in.now, TTL: in.host.Spec.TokenTTL.Duration,
		}, true
	}
	if in.identity != nil && in.identity.TokenHash == registration.HashToken(token.Value) {
		token.Used = true
	}
	return token, made
}

// handOver sends a connected agent its settings and then its instructions, unless the agent already has them. If the
// state of the host is newer than the state of the hub, the instructions wait for confirmation. In that case, if the
// host already has the hub's instructions, handOver sends them again to deliver the hub's checkpoint.
func (r *Reconciler) handOver(ctx context.Context, in *input) error {
	report := in.report()
	if report == nil {
		return nil
	}
	agrees, cleaning := report.Progress.Version == in.version, report.Progress.Phase == protocol.HostCleaning
	behind, err := r.holdBack(ctx, in, agrees || cleaning)
	if err != nil {
		return err
	}
	if settings := r.Settings(); in.state.Report.SettingsDigest != settings.Digest() {
		in.call = r.Members.StartSettings(in.member, settings)
		return nil
	}
	if cleaning || in.held != nil || agrees && !behind {
		return nil
	}
	secret, err := owned.ReadSecret(ctx, r.Live, secretName(in.host))
	if in.version == "" {
		// Cleaning a machine cannot be undone, so the Secret is read from the API server. The cache may be outdated,
		// and does not contain Secrets without Drover's labels.
		if err == nil && !holdsInstructions(secret, in.host) {
			r.give(in, "", nil)
		}
		return err
	}
	if err != nil || secret == nil || secret.Type != v1.SecretTypeHostInstructions || version(secret) != in.version {
		return err // the newer Secret triggers another reconcile
	}
	if _, err := protocol.ParseHostInstructions(secret.Data[v1.HostInstructionsKey]); err != nil {
		in.invalid = err.Error()
		return nil
	}
	r.give(in, in.version, secret.Data[v1.HostInstructionsKey])
	return nil
}

// holdsInstructions reports whether a Secret holds the instructions of a Host. The Secret may be nil.
func holdsInstructions(secret *corev1.Secret, host *v1.Host) bool {
	return secret != nil && secret.Type == v1.SecretTypeHostInstructions && secret.DeletionTimestamp.IsZero() &&
		secret.Labels[v1.LabelHost] == host.Name
}

// version returns an identifier for the content of a Secret that contains instructions.
func version(secret *corev1.Secret) string { return string(secret.UID) + "." + secret.ResourceVersion }

func secretName(host *v1.Host) types.NamespacedName {
	return types.NamespacedName{Namespace: host.Namespace, Name: host.Name + v1.HostInstructionsSecretSuffix}
}

// lookAgain returns the time after which the status will change without any event, or zero if it will not change.
func (in *input) lookAgain() time.Duration {
	switch {
	case in.identity == nil && in.now.Before(in.token.Expires()):
		return in.token.Expires().Sub(in.now)
	case in.identity != nil && !in.state.Connected() && in.now.Before(in.state.Returning):
		return in.state.Returning.Sub(in.now)
	case in.identity != nil && in.settling && !in.state.Connected():
		return time.Second
	case in.foreign || !in.call.At.IsZero():
		return members.CallPause
	}
	return 0
}
