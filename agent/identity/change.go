// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package identity

import (
	"context"
	"crypto/ed25519"
	"errors"
	"math"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/drover-dev/drover/agent/link"
	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/await"
	"github.com/drover-dev/drover/internal/protocol"
)

// maxRetry is the maximum delay between attempts to use a join token that may be accepted later.
const maxRetry = 5 * time.Minute

// Changed returns when the registration Secret holds a join token that has not been tried yet, or when the agent's key
// differs from the key used in the last attempt. It also returns when ctx is done.
func (k *Keeper) Changed(ctx context.Context) {
	ctx, found := context.WithCancel(ctx)
	defer found()
	var running sync.WaitGroup
	defer running.Wait()
	running.Go(func() { defer found(); k.await(ctx, protocol.IdentitySecret, k.anotherKey) })
	k.await(ctx, protocol.RegistrationSecret, k.freshToken)
	found()
}

// Follow keeps the agent's identity up to date until ctx is done. It joins with each new join token, using a new key,
// and restores the identity if a user has deleted it. The tunnel stays open until the hub has accepted the new key and
// closes the tunnel. Only one replica may run Follow at a time.
func (k *Keeper) Follow(ctx context.Context) {
	var running sync.WaitGroup
	defer running.Wait()
	running.Go(func() {
		for ctx.Err() == nil {
			k.await(ctx, protocol.IdentitySecret, k.lost)
			k.repeat(ctx, "cannot restore the agent's identity", k.restore)
		}
	})
	for ctx.Err() == nil {
		k.await(ctx, protocol.RegistrationSecret, k.newToken)
		k.repeat(ctx, "cannot use the new join token; the agent keeps its current Cluster", k.rejoin)
	}
}

// repeat calls the do function until it succeeds or ctx is done. The delay between calls grows up to maxRetry.
func (k *Keeper) repeat(ctx context.Context, failed string, do func(context.Context) error) {
	backoff := wait.Backoff{Duration: rewatch, Factor: 2, Jitter: 0.1, Steps: math.MaxInt32, Cap: maxRetry}
	for ctx.Err() == nil {
		err := do(ctx)
		if err == nil {
			return
		}
		pause := backoff.Step()
		if ctx.Err() == nil && !errors.Is(err, errNotJoined) {
			k.options.Log.Info(failed, "error", err.Error(), "retryIn", pause.Round(time.Second).String())
		}
		await.Time(ctx, pause)
	}
}

// errNotJoined is returned if the agent has not joined yet. The first join is left to the link.
var errNotJoined = errors.New("the agent has not joined yet")

// rejoin joins with a new key. If there is a new join token, rejoin uses it. A user who gives a running agent a new
// token expects a new key.
func (k *Keeper) rejoin(ctx context.Context) error {
	k.identityMu.Lock()
	defer k.identityMu.Unlock()
	token, bundle, err := k.registration(ctx)
	if err != nil {
		return err
	}
	id, err := k.identity(ctx)
	if err != nil {
		return err
	}
	if !k.untried(token) {
		return nil
	}
	if !id.Joined() {
		return errNotJoined
	}
	hub, err := k.resolve(ctx, id, bundle)
	if err != nil {
		return err
	}
	key, err := newKey()
	if err != nil {
		return err
	}
	_, err = k.join(ctx, hub, id, key, token)
	if refused := (*refusedError)(nil); errors.As(err, &refused) && !k.untried(token) { // the refusal is permanent
		k.options.Log.Info("the hub refuses the new join token; the agent keeps its current Cluster", "cluster",
			id.Cluster.String(), "error", err.Error())
		return nil
	}
	return err
}

// restore restores the identity of a running agent. Without the identity, the agent could not connect after a restart,
// because its join token has already been used.
func (k *Keeper) restore(ctx context.Context) error {
	k.identityMu.Lock()
	defer k.identityMu.Unlock()
	_, err := k.identity(ctx)
	return err
}

// identity reads the agent's identity. The caller must hold identityMu.
func (k *Keeper) identity(ctx context.Context) (*identity, error) {
	id, err := k.store.ensure(ctx)
	if err != nil {
		return nil, err
	}
	k.mu.Lock()
	leaving := k.leaving
	if k.tried == "" {
		k.tried = id.JoinedWith
	}
	k.mu.Unlock()
	if id.Joined() || k.joined == nil || leaving {
		if id.Joined() {
			k.joined = id
		}
		return id, nil
	}
	if err := k.store.put(ctx, k.joined); err != nil {
		return nil, err
	}
	k.options.Log.Info("the agent's identity was deleted; restoring it; for a new key apply the manifest of a new join "+
		"token", "secret", protocol.IdentitySecret)
	return k.joined, nil
}

// succeedTime is the timeout for Succeed.
const succeedTime = 20 * time.Second

// Succeed takes over from an earlier Keeper of the same cluster, for example after the cluster was restored from a
// backup. The Secret may then contain a key that the hub does not accept, or a CA that does not verify the hub. Succeed
// stores the last valid identity again. If this fails, the agent uses the identity in the Secret.
func (k *Keeper) Succeed(ctx context.Context, former *Keeper) {
	last := former.last()
	if last == nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, succeedTime)
	defer cancel()
	var changed bool
	err := wait.PollUntilContextCancel(ctx, time.Second, true, func(ctx context.Context) (bool, error) {
		stored, err := k.store.get(ctx)
		if changed = err != nil || !stored.same(last); err == nil && changed || apierrors.IsNotFound(err) {
			err = k.store.put(ctx, last)
		}
		return err == nil, nil
	})
	switch {
	case err != nil:
		k.options.Log.Info("cannot check whether the agent's identity is the one from before the restore",
			"secret", protocol.IdentitySecret, "error", err.Error())
	case changed:
		k.options.Log.Info("the agent's identity came from a backup; restored the newer one", "secret",
			protocol.IdentitySecret)
	}
}

// last returns the identity that the hub accepted last, or nil if there is none or the agent is being uninstalled. The
// identity that was read last is not suitable, because it may come from the backup.
func (k *Keeper) last() *identity {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.leaving {
		return nil
	}
	return k.proven
}

// Leave prevents the identity from being restored, because the agent is about to be uninstalled.
func (k *Keeper) Leave() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.leaving = true
}

// await waits until an event for a Secret satisfies the condition "is", or until ctx is done.
func (k *Keeper) await(ctx context.Context, name string, is func(watch.EventType, *corev1.Secret) bool) {
	// The error only means that ctx is done.
	_ = wait.PollUntilContextCancel(ctx, rewatch, true,
		func(ctx context.Context) (bool, error) { return k.watch(ctx, name, is), nil })
}

// watch reports whether an event for a Secret satisfied the condition "is" before the watch ended.
func (k *Keeper) watch(ctx context.Context, name string, is func(watch.EventType, *corev1.Secret) bool) bool {
	w, err := k.options.Secrets.Watch(ctx, name)
	if err != nil {
		k.options.Log.V(1).Info("cannot watch a Secret", "secret", name, "error", err.Error())
		return false
	}
	defer w.Stop()
	for {
		select {
		case <-ctx.Done():
			return false
		case event, open := <-w.ResultChan():
			if !open {
				return false
			}
			if secret, ok := event.Object.(*corev1.Secret); ok && is(event.Type, secret) {
				return true
			}
		}
	}
}

// newToken reports whether a registration Secret contains a join token that has not been tried yet. It first waits for
// a join in progress, which may try the same token.
func (k *Keeper) newToken(event watch.EventType, secret *corev1.Secret) bool {
	k.identityMu.Lock()
	defer k.identityMu.Unlock()
	return event != watch.Deleted && k.untried(tokenOf(secret))
}

// freshToken is like newToken, but ignores tokens that were refused temporarily. Use it in callers that retry
// immediately.
func (k *Keeper) freshToken(event watch.EventType, secret *corev1.Secret) bool {
	k.mu.Lock()
	later := k.later
	k.mu.Unlock()
	return k.newToken(event, secret) && tokenDigest(tokenOf(secret)) != later
}

// anotherKey reports whether an identity's key differs from the key used in the last attempt.
func (k *Keeper) anotherKey(event watch.EventType, secret *corev1.Secret) bool {
	id, err := decode(secret.Data)
	if err != nil || event == watch.Deleted || !id.Joined() {
		return false
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.key != "" && keyOf(id.Key) != k.key
}

// lost reports whether the identity has been deleted and must be restored.
func (k *Keeper) lost(event watch.EventType, _ *corev1.Secret) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return event == watch.Deleted && !k.leaving
}

func (k *Keeper) untried(token string) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return token != "" && tokenDigest(token) != k.tried
}

func (k *Keeper) try(token string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.tried = tokenDigest(token)
}

// refused records that the hub does not accept a join token, either permanently or while the agent belongs to another
// Cluster.
func (k *Keeper) refused(token string, err error) {
	switch {
	case isElsewhere(err):
		k.mu.Lock()
		k.later = tokenDigest(token)
		k.mu.Unlock()
	case link.IsRejection(err):
		k.try(token)
	}
}

// isElsewhere reports whether the hub refused an agent because the agent already belongs to another Cluster. Such a
// refusal is not permanent.
func isElsewhere(err error) bool {
	refused := (*refusedError)(nil)
	return errors.As(err, &refused) && refused.Refusal.Reason == v1.ReasonAlreadyImported
}

// keyOf returns an identifier for a key. The identifier does not reveal the key.
func keyOf(key ed25519.PrivateKey) string {
	public, _ := key.Public().(ed25519.PublicKey) // the public half of an Ed25519 key has this type
	return string(public)
}
