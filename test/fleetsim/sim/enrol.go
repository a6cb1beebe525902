// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/x509"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/uuid"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/drover-dev/drover/agent/identity"
	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/protocol"
	"github.com/drover-dev/drover/internal/registration"
	"github.com/drover-dev/drover/internal/trust"
)

// Member is a Cluster, or a Host, on the hub and the key of its agent.
type Member struct {
	// Cluster names it as the hub does among members.
	Cluster protocol.ClusterRef
	// ClusterUID is the UID of the kube-system namespace that the member would have.
	ClusterUID string
	Key        ed25519.PrivateKey
	// Audience of its connect tokens.
	Audience string
	// SettingsDigest is that of the settings that the agent received when it joined.
	SettingsDigest string
}

// Enrolment makes Clusters on a hub, and members of them.
type Enrolment struct {
	// Hub has the rights of the hub's administrator.
	Hub client.Client
	// Server is the hub's base URL, Bundle its CA bundle as PEM.
	Server string
	Bundle []byte
	// Clusters is how many to create, over how many Workspaces.
	Clusters, Workspaces int
	// Hosts makes Hosts in place of Clusters.
	Hosts bool
	// Join has each agent join with the token of its Cluster, which needs a running manager. Otherwise the agents' Secrets
	// are written as the manager would, which is faster and needs none.
	Join bool
}

// parallel is how many requests are under way at once.
const parallel = 32

// Do creates what does not exist yet. Members that have joined before cannot join again; their identity is replaced
// unless Join is set.
func (e Enrolment) Do(ctx context.Context) ([]Member, error) {
	if e.Clusters < 1 || e.Workspaces < 1 {
		return nil, errors.New("enrol members: there must be at least one cluster and one workspace")
	}
	for i := range e.Workspaces {
		namespace := &corev1.Namespace{}
		namespace.Name = workspace(i)
		if err := e.Hub.Create(ctx, namespace); err != nil && !apierrors.IsAlreadyExists(err) {
			return nil, fmt.Errorf("create workspace: %w", err)
		}
	}
	system := &corev1.Namespace{}
	if err := e.Hub.Get(ctx, types.NamespacedName{Name: metav1.NamespaceSystem}, system); err != nil {
		return nil, fmt.Errorf("identify the hub: %w", err)
	}
	audience := trust.Identity(string(system.UID)) // of a hub that was not restored from a backup
	settings := protocol.Settings{Servers: []string{e.Server}, CABundle: string(e.Bundle)}.Digest()
	members := make([]Member, e.Clusters)
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(parallel)
	for i := range members {
		group.Go(func() error {
			name := ClusterName(i, e.Workspaces)
			_, key, err := ed25519.GenerateKey(rand.Reader)
			if err != nil {
				return fmt.Errorf("enrol member %s: %w", name, err)
			}
			members[i] = Member{ClusterUID: string(uuid.NewUUID()), Key: key, Audience: audience, SettingsDigest: settings}
			if err := e.one(ctx, name, &members[i]); err != nil {
				return fmt.Errorf("enrol member %s: %w", name, err)
			}
			return nil
		})
	}
	return members, group.Wait()
}

// ClusterName is the name of the i-th Cluster.
func ClusterName(i, workspaces int) types.NamespacedName {
	return types.NamespacedName{Namespace: workspace(i % workspaces), Name: fmt.Sprintf("member-%05d", i)}
}

func workspace(i int) string { return fmt.Sprintf("fleet-%02d", i) }

// one creates one Cluster or Host and sets the identity of its member.
func (e Enrolment) one(ctx context.Context, name types.NamespacedName, m *Member) error {
	var owner client.Object = &v1.Cluster{}
	member := name
	if e.Hosts {
		owner, member.Name = &v1.Host{}, protocol.HostMember(name.Name)
	}
	owner.SetNamespace(name.Namespace)
	owner.SetName(name.Name)
	if err := e.Hub.Create(ctx, owner); apierrors.IsAlreadyExists(err) {
		err = e.Hub.Get(ctx, name, owner)
		if err != nil {
			return err
		}
	} else if err != nil {
		return err
	}
	m.Cluster = protocol.ClusterRef{Namespace: member.Namespace, Name: member.Name, UID: string(owner.GetUID())}
	if e.Join {
		return e.join(ctx, member, m)
	}
	return e.write(ctx, owner, m)
}

// write stores the member's key as that of the Cluster's agent, without a join.
func (e Enrolment) write(ctx context.Context, owner client.Object, m *Member) error {
	public, ok := m.Key.Public().(ed25519.PublicKey)
	if !ok {
		return errors.New("the key is not Ed25519")
	}
	secret := &corev1.Secret{}
	registration.WriteIdentity(secret, owner, registration.AgentIdentity{
		PublicKey: public, ClusterUID: m.ClusterUID, OwnerUID: owner.GetUID(), Joined: time.Now(),
	})
	err := e.Hub.Create(ctx, secret)
	if apierrors.IsAlreadyExists(err) {
		return e.Hub.Update(ctx, secret)
	}
	return err
}

// join shows the token of the Cluster to the hub, as an agent does that has just been installed.
func (e Enrolment) join(ctx context.Context, name types.NamespacedName, m *Member) error {
	token, err := e.token(ctx, name)
	if err != nil {
		return err
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(e.Bundle)
	endpoint := identity.Endpoint{Servers: []string{e.Server}, Roots: roots}
	answer, err := identity.Join(ctx, endpoint, identity.JoinInput{Token: token, Key: m.Key, ClusterUID: m.ClusterUID})
	if err != nil {
		return err
	}
	m.Cluster, m.Audience, m.SettingsDigest = answer.Cluster, answer.Audience, answer.Settings.Digest()
	return nil
}

// token waits for the join token that the manager makes.
func (e Enrolment) token(ctx context.Context, name types.NamespacedName) (string, error) {
	const patience, pause = time.Minute, 200 * time.Millisecond
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for {
		secret := &corev1.Secret{}
		err := e.Hub.Get(ctx, registration.RegistrationSecret(name), secret)
		if err == nil {
			return string(secret.Data[registration.KeyToken]), nil
		}
		if !apierrors.IsNotFound(err) || !wait(ctx, pause) {
			return "", fmt.Errorf("read join token: %w; is the manager running?", err)
		}
	}
}
