// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package hosts claims Hosts for clusters and machines, gives them instructions, and releases them when their machines
// have been cleaned.
package hosts

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	corev1ac "k8s.io/client-go/applyconfigurations/core/v1"
	metav1ac "k8s.io/client-go/applyconfigurations/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/owned"
	"github.com/drover-dev/drover/internal/protocol"
)

// fieldOwner is the field manager for everything that this package writes.
const fieldOwner = owned.FieldOwner

// annotationDigest is an annotation on Secrets with instructions. Its value is a digest of the instructions.
const annotationDigest = v1.AnnotationPlanDigest

// annotationNote is an annotation on Secrets that contain instructions. Its value is a note that only the controller
// uses.
const annotationNote = v1.AnnotationPlanNote

var (
	// ErrNotFree is returned when a caller tries to claim a Host that is not free.
	ErrNotFree = errors.New("the host is not free")
	// ErrForeignInstructions is returned if a Host has instructions that Drover did not create. Drover neither changes
	// nor removes such instructions.
	ErrForeignInstructions = errors.New("the host has instructions that Drover did not make: delete their Secret")
	// ErrFormerInstructions is returned if a Host has instructions that belong to an object that no longer exists. On a
	// hub that was restored from a backup, the object may exist again with another UID.
	ErrFormerInstructions = errors.New("the host has instructions of a former consumer, whose installation may be running: " +
		"delete their Secret to have the machine cleaned")
)

// Hub provides access to Hosts and their instructions. Client writes objects and reads from a cache. Live reads from
// the API server.
type Hub struct {
	Client client.Client
	Live   client.Reader
	// NotCurrent returns the reason why a Host's status may be out of date, or "" if the agent has reported the status
	// to the current leader. An outdated status may come from the backup that the hub was restored from. If NotCurrent
	// is nil, every status is considered current.
	NotCurrent func(context.Context, *v1.Host) (string, error)
	// Finalizer is the finalizer to set on claimed Hosts. If a claimed Host is deleted, its machine is not cleaned until
	// Release is called. If Finalizer is empty, no finalizer is set.
	Finalizer string
}

// TakenBy reports whether a Host is claimed by the given object. An earlier object with the same name does not count.
func TakenBy(host *v1.Host, consumer v1.HostConsumerRef) bool {
	ref := host.Spec.ConsumerRef
	return ref != nil && *ref == consumer
}

// Connected reports whether a Host's agent is connected.
func Connected(host *v1.Host) bool {
	ready := meta.FindStatusCondition(host.Status.Conditions, v1.ConditionReady)
	return ready != nil && ready.Reason != v1.ReasonTunnelLost && host.Status.State != "" && host.Status.State != v1.HostWaitingToRegister && host.Status.LastSeen == nil
}

// NotFree returns the reason why a Host is not free, or "" if it is free.
func NotFree(host *v1.Host) string {
	ref := host.Spec.ConsumerRef
	switch {
	case !host.DeletionTimestamp.IsZero():
		return "it is being deleted"
	case ref != nil:
		return fmt.Sprintf("%s %s has claimed it", ref.Kind, ref.Name)
	}
	return notClean(host)
}

// notClean returns the reason why a Host's machine might not be clean, or "" if it is known to be clean.
func notClean(host *v1.Host) string {
	ready := meta.FindStatusCondition(host.Status.Conditions, v1.ConditionReady)
	switch {
	case host.Status.State != v1.HostAvailable:
		return fmt.Sprintf("its state is %s", cmp.Or(string(host.Status.State), "not known yet"))
	case ready == nil || ready.Status != "True":
		return "its agent is not connected"
	case ready.ObservedGeneration != host.Generation:
		return "its status is not of its present spec yet"
	case meta.IsStatusConditionFalse(host.Status.Conditions, v1.ConditionRestoreConfirmed):
		return "the hub was restored, and no administrator has confirmed yet what it may do on the host"
	}
	return ""
}

// Free returns the free Hosts that match the selector, sorted by name.
func Free(all []v1.Host, selector labels.Selector) []*v1.Host {
	var free []*v1.Host
	for i := range all {
		if host := &all[i]; selector.Matches(labels.Set(host.Labels)) && NotFree(host) == "" {
			free = append(free, host)
		}
	}
	slices.SortFunc(free, func(a, b *v1.Host) int { return cmp.Compare(a.Name, b.Name) })
	return free
}

// Take claims a free Host for an object in its namespace. If two objects try to claim the Host at the same time, one of
// them gets a conflict error (apierrors.IsConflict).
func (h Hub) Take(ctx context.Context, host *v1.Host, consumer v1.HostConsumerRef) error {
	if TakenBy(host, consumer) {
		return nil
	}
	why := NotFree(host)
	if why == "" && h.NotCurrent != nil {
		var err error
		if why, err = h.NotCurrent(ctx, host); err != nil {
			return err
		}
	}
	if why == "" {
		switch secret, _, err := h.secret(ctx, host); {
		case err != nil:
			return err
		case secret != nil:
			why = "it has instructions in Secret " + secret.Name
		}
	}
	if why != "" {
		return fmt.Errorf("take Host %s/%s: %w: %s", host.Namespace, host.Name, ErrNotFree, why)
	}
	return h.setConsumer(ctx, host, &consumer)
}

// Given holds the Secret with a Host's instructions, in the version that was read. In the zero value, the Host has no
// such Secret.
type Given struct {
	secret *corev1.Secret
	ours   bool
}

// Given reads the Secret with a Host's instructions from the API server, for Note and GiveWithNote.
func (h Hub) Given(ctx context.Context, host *v1.Host) (Given, error) {
	secret, ours, err := h.secret(ctx, host)
	return Given{secret, ours}, err
}

// Note returns the note that is stored with the instructions. It also returns the version of the instructions that
// appears in the Host's status. Both are empty if the Host has no instructions from Drover.
func (g Given) Note() (note, version string) {
	if !g.ours || !g.secret.DeletionTimestamp.IsZero() {
		return "", ""
	}
	return g.secret.Annotations[annotationNote], versionOf(g.secret)
}

// Instructions returns the instructions that Drover gave to a Host. It also returns the version of these instructions,
// in the form used in the Host's status. It reads them from the API server. It returns nil if there are no such
// instructions or if they have been withdrawn. It returns ErrForeignInstructions if another Secret has the name of the
// instructions' Secret.
func (h Hub) Instructions(ctx context.Context, host *v1.Host) (*protocol.HostInstructions, string, error) {
	secret, ours, err := h.secret(ctx, host)
	switch {
	case err != nil || secret == nil:
		return nil, "", err
	case !ours:
		return nil, "", fmt.Errorf("read Secret %s/%s: %w", secret.Namespace, secret.Name, ErrForeignInstructions)
	case !secret.DeletionTimestamp.IsZero():
		return nil, "", nil
	}
	instructions, err := protocol.ParseHostInstructions(secret.Data[v1.HostInstructionsKey])
	if err != nil {
		return nil, "", fmt.Errorf("read the instructions of Host %s/%s: %w", host.Namespace, host.Name, err)
	}
	return instructions, versionOf(secret), nil
}

func versionOf(secret *corev1.Secret) string {
	return string(secret.UID) + "." + secret.ResourceVersion
}

// Give writes the instructions of a Host that an object has claimed. If the instructions are up to date, it writes
// nothing. It reports whether it wrote them.
func (h Hub) Give(ctx context.Context, host *v1.Host, consumer v1.HostConsumerRef, instructions protocol.HostInstructions) (bool, error) {
	before, err := h.Given(ctx, host)
	if err != nil {
		return false, err
	}
	return h.GiveWithNote(ctx, host, consumer, before, Noted{HostInstructions: instructions})
}

// ReplaceInstructions is like Give, but for instructions that were derived from the result of Instructions. version is
// the version that Instructions returned. If the instructions have changed in the meantime, ReplaceInstructions returns
// a conflict error (apierrors.IsConflict).
func (h Hub) ReplaceInstructions(ctx context.Context, host *v1.Host, consumer v1.HostConsumerRef, instructions protocol.HostInstructions, version string) (bool, error) {
	before, err := h.Given(ctx, host)
	switch {
	case err != nil:
		return false, err
	case before.secret == nil || versionOf(before.secret) != version:
		return false, conflict(host, "the instructions were changed since they were read")
	}
	return h.GiveWithNote(ctx, host, consumer, before, Noted{HostInstructions: instructions})
}

// Noted contains instructions and a note about them. Given.Note returns the note. The note must not contain secrets.
type Noted struct {
	protocol.HostInstructions
	Note string
}

// GiveWithNote writes the instructions of a Host and a note about them, and reports whether it wrote them. It replaces
// the instructions that are passed as given. If these have changed in the meantime, it returns a Conflict or
// AlreadyExists error.
func (h Hub) GiveWithNote(
	ctx context.Context, host *v1.Host, consumer v1.HostConsumerRef, given Given, next Noted,
) (bool, error) {
	before := given.secret
	if !TakenBy(host, consumer) || !host.DeletionTimestamp.IsZero() {
		return false, fmt.Errorf("give Host %s/%s instructions: it is not claimed by %s %s", host.Namespace, host.Name, consumer.Kind, consumer.Name)
	}
	next.Owner = consumer.Kind + "/" + consumer.Name
	content, err := json.Marshal(next.HostInstructions)
	if err != nil {
		return false, err
	}
	if _, err := protocol.ParseHostInstructions(content); err != nil {
		return false, fmt.Errorf("give Host %s/%s instructions: %w", host.Namespace, host.Name, err)
	}
	sum := sha256.Sum256(content)
	digest := hex.EncodeToString(sum[:])
	annotations := map[string]string{annotationDigest: digest}
	if next.Note != "" || before != nil && before.Annotations[annotationNote] != "" {
		annotations[annotationNote] = next.Note
	}
	switch {
	case before != nil && !before.DeletionTimestamp.IsZero():
		return false, conflict(host, "the Secret with the former ones is being deleted")
	case before != nil && !given.ours:
		return false, fmt.Errorf("give Host %s/%s instructions: %w", host.Namespace, host.Name, ErrForeignInstructions)
	case before != nil && before.Annotations[annotationDigest] == digest &&
		before.Annotations[annotationNote] == next.Note:
		return false, nil
	}
	want := corev1ac.Secret(secretName(host), host.Namespace).
		WithLabels(marks(host).Labels).
		WithAnnotations(annotations).
		WithOwnerReferences(metav1ac.OwnerReference().WithAPIVersion(v1.GroupVersion.String()).WithKind("Host").WithName(host.Name).WithUID(host.UID)).
		WithType(v1.SecretTypeHostInstructions).WithData(map[string][]byte{v1.HostInstructionsKey: content})
	if err := owned.WriteSecret(ctx, h.Client, before, want); err != nil {
		return false, fmt.Errorf("give Host %s/%s instructions: %w", host.Namespace, host.Name, err)
	}
	return true, nil
}

// Release removes a Host's instructions, which causes its machine to be cleaned. It releases the Host once the machine
// is clean. It returns true if the Host has been released, is claimed by another object, or is being deleted. When a
// Host is deleted, its machine is cleaned even if Release is not called again. If Release returns false, the Host's
// status shows the reason, and Release must be called again when the status changes.
func (h Hub) Release(ctx context.Context, host *v1.Host, consumer v1.HostConsumerRef) (bool, error) {
	switch {
	case !TakenBy(host, consumer):
		return true, nil
	case !host.DeletionTimestamp.IsZero():
		return true, h.letGo(ctx, host)
	}
	// A released Host must have no instructions. Remaining instructions would run alongside the instructions from the
	// next consumer.
	secret, ours, err := h.secret(ctx, host)
	switch {
	case err != nil:
		return false, err
	case secret != nil && !ours:
		return false, fmt.Errorf("give Host %s/%s back: %w", host.Namespace, host.Name, ErrForeignInstructions)
	case secret != nil:
		return false, owned.Delete(ctx, h.Client, secret)
	case notClean(host) != "":
		return false, nil
	}
	return true, h.setConsumer(ctx, host, nil)
}

// ReleaseFormer releases a clean Host whose consumer no longer exists, and reports whether it released the Host. A
// consumer removes its instructions before it is deleted. If the Host still has instructions, ReleaseFormer keeps them
// and returns ErrFormerInstructions. On a restored hub, the consumer may exist with another UID, and its installation
// may be running.
func (h Hub) ReleaseFormer(ctx context.Context, host *v1.Host) (bool, error) {
	if host.DeletionTimestamp.IsZero() {
		if secret, _, err := h.secret(ctx, host); err != nil {
			return false, err
		} else if secret != nil && secret.DeletionTimestamp.IsZero() {
			return false, fmt.Errorf("give Host %s/%s back: Secret %s: %w", host.Namespace, host.Name, secret.Name, ErrFormerInstructions)
		}
	}
	return h.Release(ctx, host, *host.Spec.ConsumerRef)
}

func conflict(host *v1.Host, why string) error {
	return fmt.Errorf("give Host %s/%s instructions: %w", host.Namespace, host.Name, apierrors.NewConflict(corev1.Resource("secrets"), secretName(host), errors.New(why)))
}

// marks returns the marks that identify the Secret in which Drover stores a Host's instructions. The name is not
// sufficient, because users who can write Secrets can give this name to any Secret. Only users with the "update" right
// on hosts/instructions can create a Secret of this type, and the type of a Secret cannot be changed.
func marks(host *v1.Host) owned.Marks {
	return owned.Marks{
		Type: v1.SecretTypeHostInstructions, Labels: map[string]string{v1.LabelHost: host.Name, v1.LabelSecretKind: v1.SecretKindHostInstructions}, Owner: host.UID,
	}
}

func secretName(host *v1.Host) string { return host.Name + v1.HostInstructionsSecretSuffix }

// secret reads the Secret with the name that is reserved for a Host's instructions, and reports whether Drover created
// it. It returns nil if there is no such Secret. It does not use a cache.
func (h Hub) secret(ctx context.Context, host *v1.Host) (secret *corev1.Secret, ours bool, err error) {
	name := types.NamespacedName{Namespace: host.Namespace, Name: secretName(host)}
	secret = &corev1.Secret{}
	if err := h.Live.Get(ctx, name, secret); apierrors.IsNotFound(err) {
		return nil, false, nil
	} else if err != nil {
		return nil, false, fmt.Errorf("read Secret %s: %w", name, err)
	}
	return secret, marks(host).Has(secret) && secret.Annotations[annotationDigest] != "", nil
}

func (h Hub) setConsumer(ctx context.Context, host *v1.Host, consumer *v1.HostConsumerRef) error {
	before := host.DeepCopy()
	host.Spec.ConsumerRef = consumer
	switch {
	case h.Finalizer == "":
	case consumer != nil:
		controllerutil.AddFinalizer(host, h.Finalizer)
	default:
		controllerutil.RemoveFinalizer(host, h.Finalizer)
	}
	if err := h.Client.Patch(ctx, host, client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{}), fieldOwner); err != nil {
		return fmt.Errorf("set the consumerRef of Host %s/%s: %w", host.Namespace, host.Name, err)
	}
	return nil
}

// letGo removes the finalizer from a Host that is being deleted, so that its machine can be cleaned.
func (h Hub) letGo(ctx context.Context, host *v1.Host) error {
	before := host.DeepCopy()
	if h.Finalizer == "" || !controllerutil.RemoveFinalizer(host, h.Finalizer) {
		return nil
	}
	err := h.Client.Patch(ctx, host, client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{}), fieldOwner)
	if client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("remove the finalizer %s of Host %s/%s: %w", h.Finalizer, host.Namespace, host.Name, err)
	}
	return nil
}

// Handler handles events for Hosts. When a Host changes or is released, it enqueues the object that claimed the Host,
// if the object is of the given kind.
func Handler(kind string) handler.EventHandler {
	return handler.EnqueueRequestsFromMapFunc(func(_ context.Context, object client.Object) []reconcile.Request {
		host, ok := object.(*v1.Host)
		if !ok || host.Spec.ConsumerRef == nil || host.Spec.ConsumerRef.Kind != kind {
			return nil
		}
		return []reconcile.Request{{NamespacedName: types.NamespacedName{Namespace: host.Namespace, Name: host.Spec.ConsumerRef.Name}}}
	})
}
