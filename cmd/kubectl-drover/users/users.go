// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package users contains the commands that create users who sign in with a password, and that set passwords.
package users

import (
	"context"
	"fmt"
	"io"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/cmd/kubectl-drover/cli"
	"github.com/drover-dev/drover/internal/signin/password"
)

// account holds the flags and the argument of a command.
type account struct {
	name             string
	managerNamespace string
	clusterRole      string
}

// New returns the command "user".
func New(o *cli.Options) *cobra.Command {
	c := &cobra.Command{Use: "user", Short: "Create users who sign in to the hub with a password, and set passwords"}
	c.AddCommand(newCreate(o), newPassword(o))
	return c
}

func newCreate(o *cli.Options) *cobra.Command {
	var a account
	c := &cobra.Command{
		Use:   "create NAME",
		Short: "Create a User with a random password, which is printed once",
		Long: `Create a User with a random password, which is printed once.

The user signs in as NAME. Bindings name the user local:NAME. The command writes a hash of the
password into a Secret in the manager's namespace. It uses your rights: you need to be allowed to
create Users and to create Secrets in that namespace. Use --cluster-role cluster-admin to create the
first administrator of a hub.`,
		Example: `  kubectl drover user create alice
  kubectl drover user create root --cluster-role cluster-admin`,
		Args: cli.Arguments(1, "a name"),
		RunE: func(c *cobra.Command, args []string) error {
			a.name = args[0]
			return withAccount(c, o, a, createUser)
		},
	}
	a.bind(c, o)
	c.Flags().StringVar(&a.clusterRole, "cluster-role", "", "A ClusterRole of the hub to bind the user to")
	cli.Complete(c, "cluster-role", o.CompleteKind(rbacv1.SchemeGroupVersion.WithKind("ClusterRole")))
	return c
}

func newPassword(o *cli.Options) *cobra.Command {
	var a account
	c := &cobra.Command{
		Use: "password NAME", Short: "Replace a User's password with a random one, which is printed once",
		Args: cli.Arguments(1, "a name"), ValidArgsFunction: cli.First(o.CompleteAnywhere("User")),
		RunE: func(c *cobra.Command, args []string) error {
			a.name = args[0]
			return withAccount(c, o, a, replacePassword)
		},
	}
	a.bind(c, o)
	return c
}

func (a *account) bind(c *cobra.Command, o *cli.Options) {
	c.Flags().StringVar(&a.managerNamespace, "manager-namespace", "drover-system", "The namespace of the manager")
	cli.Complete(c, "manager-namespace", o.CompleteWorkspaces)
}

// withAccount calls do with a client for the hub, and prints the password that do returns.
func withAccount(c *cobra.Command, o *cli.Options, a account,
	do func(context.Context, *cli.Hub, account) (string, error)) error {
	if len(validation.IsDNS1123Label(a.name)) > 0 {
		return fmt.Errorf("the name %q is not a DNS label: use at most 63 lower-case letters, digits and dashes",
			cli.Visible(a.name))
	}
	ctx, cancel := cli.Bounded(c.Context())
	defer cancel()
	h, err := o.Hub()
	if err != nil {
		return err
	}
	secret, err := do(ctx, h, a)
	if err != nil {
		return err
	}
	if _, err := fmt.Fprintf(c.ErrOrStderr(), "The password of %s%s, shown only once:\n", v1.PrincipalPrefixLocal, a.name); err != nil {
		return err
	}
	_, err = io.WriteString(c.OutOrStdout(), secret+"\n")
	return err
}

// createUser creates a User with a password. It grants rights last, so that a User with the same name that someone else
// created does not receive them.
func createUser(ctx context.Context, h *cli.Hub, a account) (string, error) {
	if err := checkClusterRole(ctx, h, a.clusterRole); err != nil {
		return "", err
	}
	user := &v1.User{ObjectMeta: metav1.ObjectMeta{Name: a.name}}
	if err := h.Create(ctx, user); err != nil {
		return "", fmt.Errorf("create User %s: %w", a.name, err)
	}
	secret, err := setPassword(ctx, h, a, user)
	if err != nil {
		return "", fmt.Errorf("%w; User %s has no password yet: set one with \"kubectl drover user password %s\"", err,
			a.name, a.name)
	}
	if a.clusterRole == "" {
		return secret, nil
	}
	binding := &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{
			Name:            v1.UserSecretPrefix + a.name,
			OwnerReferences: []metav1.OwnerReference{ownerOf(user)},
		},
		RoleRef:  rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: a.clusterRole},
		Subjects: []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: v1.PrincipalPrefixLocal + a.name}},
	}
	if err := h.Create(ctx, binding); err != nil {
		return "", fmt.Errorf("bind User %s to ClusterRole %s: %w; the user exists without the binding and its password is "+
			"not shown: delete the User and start again", a.name, a.clusterRole, err)
	}
	return secret, nil
}

// checkClusterRole returns an error if the hub has no ClusterRole with the given name. The hub would accept a binding
// to a missing role, but the binding would grant nothing. checkClusterRole does nothing if the name is empty or if the
// caller is not allowed to read ClusterRoles.
func checkClusterRole(ctx context.Context, h *cli.Hub, name string) error {
	if err := rbacv1.AddToScheme(h.Scheme()); err != nil || name == "" {
		return err
	}
	err := h.Get(ctx, types.NamespacedName{Name: name}, &rbacv1.ClusterRole{})
	if apierrors.IsNotFound(err) {
		return fmt.Errorf("the hub has no ClusterRole %s: \"kubectl get clusterroles\" lists the existing ones. Nothing was "+
			"changed", cli.Visible(name))
	}
	if err != nil && !apierrors.IsForbidden(err) {
		return fmt.Errorf("read ClusterRole %s: %w", cli.Visible(name), err)
	}
	return nil
}

// replacePassword gives a User a new password. The user's existing sessions remain valid.
func replacePassword(ctx context.Context, h *cli.Hub, a account) (string, error) {
	user := &v1.User{}
	if err := h.Get(ctx, types.NamespacedName{Name: a.name}, user); err != nil {
		return "", fmt.Errorf("read User %s: %w", a.name, err)
	}
	return setPassword(ctx, h, a, user)
}

// setPassword generates a random password and writes its hash to the User's Secret.
func setPassword(ctx context.Context, h *cli.Hub, a account, user *v1.User) (string, error) {
	text := password.Random()
	hash, err := password.Hash(text)
	if err != nil {
		return "", err
	}
	secret := &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: a.managerNamespace, Name: v1.UserSecretPrefix + a.name,
			Labels:          map[string]string{v1.LabelSecretKind: v1.SecretKindUser},
			OwnerReferences: []metav1.OwnerReference{ownerOf(user)},
		},
		Type: corev1.SecretTypeOpaque,
		Data: map[string][]byte{v1.UserSecretKey: []byte(hash), v1.UserSecretUID: []byte(user.UID)},
	}
	err = h.Create(ctx, secret)
	if apierrors.IsAlreadyExists(err) {
		err = h.Update(ctx, secret)
	}
	if err != nil {
		return "", fmt.Errorf("write the password's hash to Secret %s: %w", client.ObjectKeyFromObject(secret), err)
	}
	return text, nil
}

func ownerOf(user *v1.User) metav1.OwnerReference {
	return metav1.OwnerReference{APIVersion: v1.GroupVersion.String(), Kind: "User", Name: user.Name, UID: user.UID}
}
