// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package grants contains the commands that grant roles in members to users and groups, and the commands that revoke
// these grants.
package grants

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/cmd/kubectl-drover/cli"
)

// options holds the flags and arguments of a command.
type options struct {
	*cli.Options
	*cli.Change

	subject  v1.Subject
	role     string
	cluster  string
	selector string
	project  string
	kind     string
	until    string
	name     string
}

// NewGrant returns the command "grant".
func NewGrant(shared *cli.Options) *cobra.Command {
	o := &options{Options: shared}
	c := &cobra.Command{
		Use:   "grant {USER|GROUP} ROLE {--cluster CLUSTER | --selector LABELS | --project PROJECT}",
		Short: "Grant a role in members, or in the namespaces of a project, to a user or group",
		Long: `Grant a role in members, or in the namespaces of a project, to a user or group. The command
creates a ClusterRoleTemplateBinding or a ProjectRoleTemplateBinding in the workspace.

USER is the name in the member, for example github:alice. A name without a colon is a user with a
password: alice is local:alice. To grant to a group, use --kind Group. ROLE is a RoleTemplate.

With --until, the grant ends after that time, or at that time. Run the command again to change it.
Without --until, an existing grant keeps its end; "--until never" removes it. With --dry-run=client,
an existing grant is not read, so that the printed binding has no end unless --until is set. The hub
is only asked whether the role, the target and the user exist: if not, or if it cannot be reached,
the command prints a warning.`,
		Example: `  kubectl drover grant alice cluster-member --cluster prod-eu --until 8h
  kubectl drover grant github:acme/web project-member --kind Group --project web -w team-a
  kubectl drover grant alice cluster-member --cluster prod-eu --dry-run=client -o yaml`,
		Args: cli.Arguments(2, "USER ROLE"), ValidArgsFunction: o.complete,
		RunE: func(c *cobra.Command, args []string) error { return o.run(c, args, o.grant) },
	}
	o.bind(c)
	c.Flags().StringVar(&o.until, "until", "", "When the grant ends: a duration such as 8h or 7d, or a time such as "+
		"2027-01-02T15:04:05Z, or never (default: unchanged, and never for a new grant)")
	cli.Complete(c, "until", cli.Offer("8h", "7d", "never"))
	c.Flags().StringVar(&o.name, "name", "", "The name of the binding (default: from the user, the role and the target)")
	return c
}

// NewRevoke returns the command "revoke".
func NewRevoke(shared *cli.Options) *cobra.Command {
	o := &options{Options: shared}
	c := &cobra.Command{
		Use:   "revoke {USER|GROUP} ROLE {--cluster CLUSTER | --selector LABELS | --project PROJECT}",
		Short: "Take a role away from a user or group",
		Long: `Take a role away from a user or group. The command deletes all bindings of the workspace that
grant exactly this role, to exactly this user or group, in exactly this target, whatever their names
are. Other bindings stay: "kubectl drover why" lists them.`,
		Example: `  kubectl drover revoke alice cluster-member --cluster prod-eu
  kubectl drover revoke github:acme/web project-member --kind Group --project web -w team-a`,
		Args: cli.Arguments(2, "USER ROLE"), ValidArgsFunction: o.complete,
		RunE: func(c *cobra.Command, args []string) error { return o.run(c, args, o.revoke) },
	}
	o.bind(c)
	return c
}

func (o *options) bind(c *cobra.Command) {
	flags := c.Flags()
	flags.StringVar(&o.cluster, "cluster", "", "The member, as NAME or WORKSPACE/NAME")
	flags.StringVarP(&o.selector, "selector", "l", "", "All members with these labels, for example env=prod")
	flags.StringVar(&o.project, "project", "", "The project, as NAME or WORKSPACE/NAME")
	flags.StringVar(&o.kind, "kind", string(v1.SubjectUser), "What the name is: User or Group")
	c.MarkFlagsOneRequired("cluster", "selector", "project")
	c.MarkFlagsMutuallyExclusive("cluster", "selector", "project")
	o.BindWorkspace(c)
	o.Change = cli.BindChange(c)
	cli.Complete(c, "cluster", o.CompleteNames("Cluster"))
	cli.Complete(c, "project", o.CompleteNames("Project"))
	cli.Complete(c, "kind", cli.Offer(string(v1.SubjectUser), string(v1.SubjectGroup)))
}

func (o *options) complete(c *cobra.Command, args []string, start string) ([]string, cobra.ShellCompDirective) {
	switch len(args) {
	case 0: // only users with passwords have User objects
		return o.CompleteAnywhere("User")(c, args, start)
	case 1:
		return o.CompleteAnywhere("RoleTemplate")(c, args, start)
	}
	return nil, cobra.ShellCompDirectiveNoFileComp
}

func (o *options) run(c *cobra.Command, args []string, do func(context.Context, *cobra.Command, *cli.Hub) error) error {
	if err := o.parse(args); err != nil {
		return err
	}
	return o.OnHub(c, cli.CommandLimit, func(ctx context.Context, h *cli.Hub) error { return do(ctx, c, h) })
}

// parse checks the arguments. If an argument has the form WORKSPACE/NAME, parse selects the workspace.
func (o *options) parse(args []string) error {
	name := args[0]
	if o.kind != string(v1.SubjectUser) && o.kind != string(v1.SubjectGroup) {
		return fmt.Errorf("unknown kind %q: use %s or %s", cli.Visible(o.kind), v1.SubjectUser, v1.SubjectGroup)
	}
	if name == "" || args[1] == "" {
		return errors.New("the user or the role is empty")
	}
	if !strings.Contains(name, ":") {
		if o.kind == string(v1.SubjectGroup) {
			return fmt.Errorf("the group %s has no provider: use the name that members see, such as github:acme/web",
				cli.Visible(name))
		}
		name = v1.PrincipalPrefixLocal + name
	}
	o.subject, o.role = v1.Subject{Kind: v1.SubjectKind(o.kind), Name: name}, args[1]
	for _, target := range []*string{&o.cluster, &o.project} {
		if err := o.TakeWorkspace(target); err != nil {
			return err
		}
	}
	return nil
}

// target returns the Clusters that the flags select.
func (o *options) target() (v1.ClusterTarget, error) {
	if o.selector == "" {
		return v1.ClusterTarget{ClusterName: o.cluster}, nil
	}
	chosen, err := metav1.ParseToLabelSelector(o.selector)
	if err != nil {
		return v1.ClusterTarget{}, fmt.Errorf("read --selector: %w", err)
	}
	return v1.ClusterTarget{ClusterSelector: chosen}, nil
}

// binding returns the binding that the flags describe.
func (o *options) binding(workspace string) (client.Object, error) {
	place := metav1.ObjectMeta{Namespace: workspace, Name: o.bindingName()}
	end, err := o.ending(time.Now())
	if err != nil {
		return nil, err
	}
	if o.project != "" {
		return &v1.ProjectRoleTemplateBinding{ObjectMeta: place, Spec: v1.ProjectRoleTemplateBindingSpec{
			ProjectName: o.project, RoleTemplateName: o.role, Subject: o.subject, ExpiresAt: end}}, nil
	}
	target, err := o.target()
	if err != nil {
		return nil, err
	}
	return &v1.ClusterRoleTemplateBinding{ObjectMeta: place, Spec: v1.ClusterRoleTemplateBindingSpec{
		ClusterTarget: target, RoleTemplateName: o.role, Subject: o.subject, ExpiresAt: end}}, nil
}

var unnamed = regexp.MustCompile(`[^a-z0-9]+`)

// bindingName returns the value of --name, or a name that it derives from the user, the role and the target. The
// derived name ends with a digest. The names of two bindings therefore differ even if their users' names differ only in
// characters that object names must not contain.
func (o *options) bindingName() string {
	if o.name != "" {
		return o.name
	}
	parts := []string{string(o.subject.Kind), o.subject.Name, o.role, o.cluster, o.selector, o.project}
	sum := sha256.Sum256([]byte(strings.Join(parts, "\x00")))
	digest := hex.EncodeToString(sum[:4])
	_, short, _ := strings.Cut(o.subject.Name, ":")
	readable := strings.Join([]string{short, o.role, cmp.Or(o.cluster, o.project, o.selector)}, "-")
	readable = strings.Trim(unnamed.ReplaceAllString(strings.ToLower(readable), "-"), "-")
	readable = strings.Trim(readable[:min(len(readable), validation.DNS1123LabelMaxLength-len(digest)-1)], "-")
	return strings.TrimPrefix(readable+"-"+digest, "-")
}

// never is the value of --until for a grant that does not expire.
const never = "never"

// ending returns the time specified by --until, or nil if the grant does not expire.
func (o *options) ending(now time.Time) (*metav1.Time, error) {
	if o.until == "" || o.until == never {
		return nil, nil
	}
	end, err := time.Parse(time.RFC3339, o.until)
	if err != nil {
		length, err := lasting(o.until)
		if err != nil {
			return nil, fmt.Errorf("--until %s: use a duration such as 8h or 7d, or a time such as 2027-01-02T15:04:05Z",
				cli.Visible(o.until))
		}
		end = now.Add(length)
	}
	if !end.After(now) {
		return nil, fmt.Errorf("--until %s is not in the future: use \"kubectl drover revoke\" to end a grant now",
			cli.Visible(o.until))
	}
	return &metav1.Time{Time: end.UTC().Truncate(time.Second)}, nil
}

// lasting parses a duration. In addition to the units of time.ParseDuration, it accepts days.
func lasting(text string) (time.Duration, error) {
	if days, found := strings.CutSuffix(text, "d"); found {
		n, err := strconv.ParseUint(days, 10, 16)
		return time.Duration(n) * 24 * time.Hour, err
	}
	return time.ParseDuration(text)
}

// grant creates the binding, or changes the expiry time of an existing binding.
func (o *options) grant(ctx context.Context, c *cobra.Command, h *cli.Hub) error {
	wanted, err := o.binding(h.Workspace)
	if err != nil {
		return err
	}
	if err := o.Check(ctx, c, func(ctx context.Context) (cli.Checked, error) { return o.check(ctx, h) }); err != nil {
		return err
	}
	if o.Local() {
		return o.Make(h, wanted, "created"+sayEnd(wanted), nil)
	}
	found := wanted.DeepCopyObject().(client.Object)
	err = h.Get(ctx, client.ObjectKeyFromObject(wanted), found)
	if apierrors.IsNotFound(err) {
		err := o.Make(h, wanted, "created"+sayEnd(wanted),
			func(w client.Client) error { return w.Create(ctx, wanted) })
		return o.explain(h, err)
	}
	if err != nil {
		return fmt.Errorf("read binding %s: %w", client.ObjectKeyFromObject(wanted), err)
	}
	if !o.grants(found) {
		return fmt.Errorf("the binding %s exists and grants something else: use another --name",
			client.ObjectKeyFromObject(wanted))
	}
	if end := endOf(found); o.until == "" && end != nil && !end.After(time.Now()) {
		return fmt.Errorf("the binding %s has ended at %s: set --until. Nothing was granted",
			client.ObjectKeyFromObject(wanted), end.UTC().Format(time.RFC3339))
	}
	before := found.DeepCopyObject().(client.Object)
	if o.until != "" {
		setEnd(found, endOf(wanted))
	}
	done := "unchanged"
	if !endOf(before).Equal(endOf(found)) {
		done = "configured"
	}
	err = o.Make(h, found, done+sayEnd(found), func(w client.Client) error {
		return w.Patch(ctx, found, client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{}))
	})
	return o.explain(h, err)
}

// sayEnd formats the time when a grant expires, or returns "" if the grant does not expire.
func sayEnd(binding client.Object) string {
	if end := endOf(binding); end != nil {
		return ", ends at " + end.UTC().Format(time.RFC3339)
	}
	return ""
}

// explain adds advice to an error that the hub has returned to refuse a grant.
func (o *options) explain(h *cli.Hub, err error) error {
	if apierrors.IsForbidden(err) {
		return fmt.Errorf("grant %s in workspace %s: %w: you need the verb \"bind\" on the RoleTemplate", o.role,
			h.Workspace, err)
	}
	return err
}

// revoke deletes all bindings that grant exactly the rights that the flags describe.
func (o *options) revoke(ctx context.Context, c *cobra.Command, h *cli.Hub) error {
	found, err := o.bindings(ctx, h)
	if err != nil {
		return err
	}
	deleted := 0
	for _, binding := range found {
		if !o.grants(binding) {
			continue
		}
		deleted++
		uid := binding.GetUID()
		err := o.Make(h, binding, "deleted", func(w client.Client) error {
			return client.IgnoreNotFound(w.Delete(ctx, binding, client.Preconditions{UID: &uid}))
		})
		if err != nil {
			return fmt.Errorf("delete binding %s: %w", client.ObjectKeyFromObject(binding), err)
		}
	}
	if deleted == 0 {
		return fmt.Errorf("no binding in workspace %s grants %s to %s %s in this target: \"kubectl drover who-can\" and "+
			"\"kubectl -n %s get crtb,prtb\" list the bindings", h.Workspace, cli.Visible(o.role), o.subject.Kind,
			cli.Visible(o.subject.Name), h.Workspace)
	}
	return nil
}
