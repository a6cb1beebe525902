// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package rights

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/discovery/cached/memory"
	authenticationclient "k8s.io/client-go/kubernetes/typed/authentication/v1"
	authorizationclient "k8s.io/client-go/kubernetes/typed/authorization/v1"
	coreclient "k8s.io/client-go/kubernetes/typed/core/v1"
	rbacclient "k8s.io/client-go/kubernetes/typed/rbac/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/restmapper"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/cmd/kubectl-drover/cli"
	"github.com/drover-dev/drover/internal/access"
)

// memberClient queries a member's API server with the caller's own rights. It has clients for only four API groups,
// because clients for all groups would make the plugin larger.
type memberClient struct {
	authentication authenticationclient.AuthenticationV1Interface
	authorization  authorizationclient.AuthorizationV1Interface
	core           coreclient.CoreV1Interface
	rbac           rbacclient.RbacV1Interface
	mapper         meta.RESTMapperWithContext
}

func newMemberClient(config *rest.Config) (*memberClient, error) {
	authentication, noAuthentication := authenticationclient.NewForConfig(config)
	authorization, noAuthorization := authorizationclient.NewForConfig(config)
	core, noCore := coreclient.NewForConfig(config)
	rbac, noRBAC := rbacclient.NewForConfig(config)
	if err := errors.Join(noAuthentication, noAuthorization, noCore, noRBAC); err != nil {
		return nil, fmt.Errorf("make client for %s: %w", config.Host, err)
	}
	return &memberClient{
		authentication: authentication, authorization: authorization, core: core, rbac: rbac, mapper: mapperOf(config),
	}, nil
}

// reach connects to the member, and verifies that it is the cluster that joined as this Cluster.
func (o *options) reach(ctx context.Context, h *cli.Hub, g *gathered) (*memberClient, error) {
	if err := g.neverJoined(); err != nil {
		return nil, err
	}
	if o.memberContext == "" {
		if err := g.away(); err != nil {
			return nil, err
		}
	}
	base, _ := o.Proxy()
	config, err := o.MemberConfig(o.memberContext, base, h.Workspace, o.cluster)
	if err != nil {
		return nil, err
	}
	m, err := newMemberClient(config)
	if err != nil {
		return nil, err
	}
	system, err := m.core.Namespaces().Get(ctx, metav1.NamespaceSystem, metav1.GetOptions{})
	switch {
	case err == nil && string(system.UID) != g.cluster.Status.ClusterUID:
		return nil, fmt.Errorf("%s leads to another cluster: set the right context with --member-context", config.Host)
	case err != nil && !ownRefusal(err):
		return nil, fmt.Errorf("ask %s: %w", config.Host, cli.Unreached(err))
	case err != nil && !cli.ThroughHub(config.Host, base, h.Workspace, o.cluster):
		return nil, fmt.Errorf("%s may lead to another cluster, because you may not read namespace kube-system there, whose UID identifies a cluster: ask for this right, or use a context that leads through the hub, whose address must be in the kubeconfig: see \"kubectl drover use --help\"",
			config.Host)
	}
	return m, nil
}

// ownRefusal reports whether the member's own RBAC refused a request. Such a request has reached the member. The hub
// itself refuses only access to a member as a whole.
func ownRefusal(err error) bool {
	var status apierrors.APIStatus
	return apierrors.IsForbidden(err) && errors.As(err, &status) && status.Status().Details != nil && status.Status().Details.Kind == "namespaces"
}

// mapperOf returns a mapper that knows an API server's resources and their short names. It returns nil if config is
// nil.
func mapperOf(config *rest.Config) meta.RESTMapperWithContext {
	client, err := discovery.NewDiscoveryClientForConfig(config)
	if err != nil {
		return nil
	}
	cached := memory.NewMemCacheClientWithContext(discovery.ToDiscoveryInterfaceWithContext(client))
	return restmapper.NewShortcutExpanderWithContext(restmapper.NewDeferredDiscoveryRESTMapperWithContext(cached), cached,
		nil)
}

// projectOf returns the project that a namespace's label refers to.
func (m *memberClient) projectOf(ctx context.Context, namespace string) (string, error) {
	found, err := m.core.Namespaces().Get(ctx, namespace, metav1.GetOptions{})
	if err != nil {
		return "", fmt.Errorf("read namespace %s: %w", namespace, err)
	}
	return found.Labels[v1.LabelProject], nil
}

// review asks the member's API server whether the action is allowed. Callers who are not allowed to review other users'
// rights can still review their own rights.
func (m *memberClient) review(ctx context.Context, who principal, what access.Action) (authorizationv1.SubjectAccessReviewStatus, error) {
	user, groups := who.userAndGroups()
	spec := authorizationv1.SubjectAccessReviewSpec{User: user, Groups: groups}
	spec.ResourceAttributes, spec.NonResourceAttributes = attributes(what)
	review, err := m.authorization.SubjectAccessReviews().Create(ctx, &authorizationv1.SubjectAccessReview{Spec: spec}, metav1.CreateOptions{})
	switch {
	case apierrors.IsForbidden(err) && m.isCaller(ctx, who):
		return m.selfReview(ctx, what)
	case err != nil:
		return authorizationv1.SubjectAccessReviewStatus{}, fmt.Errorf("create subjectaccessreview: %w", err)
	}
	return review.Status, nil
}

func (m *memberClient) selfReview(ctx context.Context, what access.Action) (authorizationv1.SubjectAccessReviewStatus, error) {
	self := &authorizationv1.SelfSubjectAccessReview{}
	self.Spec.ResourceAttributes, self.Spec.NonResourceAttributes = attributes(what)
	review, err := m.authorization.SelfSubjectAccessReviews().Create(ctx, self, metav1.CreateOptions{})
	if err != nil {
		return authorizationv1.SubjectAccessReviewStatus{}, fmt.Errorf("create selfsubjectaccessreview: %w", err)
	}
	return review.Status, nil
}

// attributes converts an action to the attributes of an access review.
func attributes(what access.Action) (*authorizationv1.ResourceAttributes, *authorizationv1.NonResourceAttributes) {
	if what.URL != "" {
		return nil, &authorizationv1.NonResourceAttributes{Verb: what.Verb, Path: what.URL}
	}
	resource, sub, _ := strings.Cut(what.Resource, "/")
	return &authorizationv1.ResourceAttributes{
		Verb: what.Verb, Group: what.Group, Resource: resource, Subresource: sub, Namespace: what.Namespace, Name: what.Name,
	}, nil
}

// presence is the state of an object in the member.
type presence string

const (
	present   presence = "Present"
	absent    presence = "Absent"
	different presence = "Different"
	unread    presence = "Unread"
)

// delivered is the state of a chain's objects in the member.
type delivered struct {
	// Binding is the state of the binding. It is Different if the binding in the member grants a different role or has
	// a different subject.
	Binding presence `json:"binding"`
	// Role is the state of the role. It is Different if no rule of the role allows the action.
	Role presence `json:"role"`
	// refusals are the reasons why objects are Unread.
	refusals []error
}

// follow looks up the objects at the end of a chain.
func (m *memberClient) follow(ctx context.Context, chain access.Chain, what access.Action) delivered {
	d := delivered{}
	ref, subjects, err := m.binding(ctx, chain.Object)
	d.Binding = d.judge(err, ref.Name == chain.Role && slices.ContainsFunc(subjects, func(s rbacv1.Subject) bool {
		return s.Kind == string(chain.Subject.Kind) && s.Name == chain.Subject.Name
	}))
	role, err := m.rbac.ClusterRoles().Get(ctx, chain.Role, metav1.GetOptions{})
	d.Role = d.judge(err, err == nil && slices.ContainsFunc(role.Rules, func(r rbacv1.PolicyRule) bool { return access.Allows(r, what) }))
	return d
}

func (m *memberClient) binding(ctx context.Context, object access.Reference) (rbacv1.RoleRef, []rbacv1.Subject, error) {
	if object.Kind == "RoleBinding" {
		b, err := m.rbac.RoleBindings(object.Namespace).Get(ctx, object.Name, metav1.GetOptions{})
		if err != nil {
			return rbacv1.RoleRef{}, nil, fmt.Errorf("read RoleBinding: %w", err)
		}
		return b.RoleRef, b.Subjects, nil
	}
	b, err := m.rbac.ClusterRoleBindings().Get(ctx, object.Name, metav1.GetOptions{})
	if err != nil {
		return rbacv1.RoleRef{}, nil, fmt.Errorf("read ClusterRoleBinding: %w", err)
	}
	return b.RoleRef, b.Subjects, nil
}

func (d *delivered) judge(err error, asExpected bool) presence {
	switch {
	case apierrors.IsNotFound(err):
		return absent
	case err != nil:
		d.refusals = append(d.refusals, err)
		return unread
	case !asExpected:
		return different
	}
	return present
}

// isCaller reports whether the principal is the user that the member's API server identifies as the caller.
func (m *memberClient) isCaller(ctx context.Context, who principal) bool {
	self, err := m.authentication.SelfSubjectReviews().Create(ctx, &authenticationv1.SelfSubjectReview{}, metav1.CreateOptions{})
	return err == nil && who.Kind == v1.SubjectUser && self.Status.UserInfo.Username == who.Name
}
