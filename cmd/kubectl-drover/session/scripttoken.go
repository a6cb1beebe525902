// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package session

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/drover-dev/drover/cmd/kubectl-drover/cli"
	"github.com/drover-dev/drover/cmd/kubectl-drover/session/login"
)

const pathTokens = "/v1/auth/tokens"

// scriptToken is a script token as described by the hub.
type scriptToken struct {
	ID          string     `json:"id"`
	Description string     `json:"description,omitempty"`
	Cluster     string     `json:"cluster,omitempty"`
	Created     time.Time  `json:"created"`
	Expires     time.Time  `json:"expires"`
	LastUsed    *time.Time `json:"lastUsed,omitempty"`
	// Token is the token itself. The hub returns it only once.
	Token string `json:"token,omitempty"`
}

type scriptTokens struct {
	Items []scriptToken `json:"items"`
}

// Names returns the IDs of the tokens.
func (l scriptTokens) Names() []string {
	return cli.Map(l.Items, func(t scriptToken) string { return t.ID })
}

// wantedToken is a request for a script token. The hub sets defaults for empty fields.
type wantedToken struct {
	Description string `json:"description,omitempty"`
	Cluster     string `json:"cluster,omitempty"`
	TTL         string `json:"ttl,omitempty"`
}

// NewToken returns the command "token".
func NewToken(shared *cli.Options) *cobra.Command {
	o := &options{Options: shared}
	c := &cobra.Command{
		Use: "token", Short: "Create, list and revoke your tokens for scripts",
		Long: `Make, list and revoke your tokens for scripts. Whoever has such a token is you in the Clusters that it is good for, until it expires, is revoked, or you may no longer sign in.`,
	}
	c.AddCommand(newTokenCreate(o), newTokenList(o), newTokenRevoke(o))
	return c
}

func newTokenCreate(o *options) *cobra.Command {
	var wanted wantedToken
	var ttl time.Duration
	c := &cobra.Command{
		Use: "create", Short: "Create a token, and print it once",
		Args: cli.NoArguments,
		RunE: func(c *cobra.Command, _ []string) error {
			if ttl != 0 {
				wanted.TTL = ttl.String()
			}
			return o.withSession(c, func(ctx context.Context, session *login.Session) error {
				if err := checkReach(ctx, session, wanted.Cluster); err != nil {
					return err
				}
				made, err := makeToken(ctx, session, wanted)
				if err != nil {
					return err
				}
				var b strings.Builder
				cli.Say(&b, "Token %s of %s is valid for %s until %s, and is shown only once:\n", made.ID, session.Claims().Subject, cmp.Or(made.Cluster, "all Clusters"),
					made.Expires.Local().Format(time.RFC3339))
				if _, err := c.ErrOrStderr().Write([]byte(b.String())); err != nil {
					return err
				}
				_, err = fmt.Fprintln(c.OutOrStdout(), cli.Plain(made.Token)) // only the token, for scripts
				return err
			})
		},
	}
	c.Flags().StringVar(&wanted.Description, "description", "", "A description of the token's use")
	c.Flags().StringVar(&wanted.Cluster, "cluster", "", "The only Cluster that the token is valid for, as WORKSPACE/NAME "+
		"(default: all Clusters)")
	c.Flags().DurationVar(&ttl, "ttl", 0, "How long the token is valid, such as 720h (default: 720h, or the hub's limit "+
		"if that is shorter)")
	cli.Complete(c, "cluster", o.completeReachable(func(c reachableCluster) []string { return []string{c.String()} }))
	return c
}

// checkReach returns an error if the user cannot reach the Cluster <namespace>/<name>. A token for such a Cluster would
// be useless. If cluster is empty, the token is for all Clusters.
func checkReach(ctx context.Context, session *login.Session, cluster string) error {
	if cluster == "" {
		return nil
	}
	workspace, _, named := strings.Cut(cluster, "/")
	if !named {
		return fmt.Errorf("--cluster %s: use the form WORKSPACE/NAME", cli.Visible(cluster))
	}
	list, err := clustersOf(ctx, session, workspace, "")
	if err != nil {
		return err
	}
	if !list.Incomplete && !slices.ContainsFunc(list.Items, func(c reachableCluster) bool { return c.String() == cluster }) {
		return fmt.Errorf("you cannot reach a Cluster %s: \"kubectl drover clusters\" lists the Clusters that you can "+
			"reach. No token was created", cli.Visible(cluster))
	}
	return nil
}

// makeToken creates a token on the hub.
func makeToken(ctx context.Context, session *login.Session, wanted wantedToken) (scriptToken, error) {
	var made scriptToken
	err := callHub(ctx, session, http.MethodPost, pathTokens, wanted, &made)
	return made, err
}

func newTokenList(o *options) *cobra.Command {
	c := &cobra.Command{
		Use: "list", Short: "List your tokens",
		Args: cli.NoArguments, PreRunE: func(*cobra.Command, []string) error { return o.CheckListOutput() },
		RunE: listOwn[scriptTokens](o, pathTokens),
	}
	o.BindListOutput(c)
	return c
}

func newTokenRevoke(o *options) *cobra.Command {
	c := &cobra.Command{
		Use: "revoke ID...", Short: "Revoke tokens; the hub rejects them immediately",
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) == 0 {
				return errors.New("kubectl drover token revoke requires the IDs of tokens: \"kubectl drover token list\" lists " +
					"them")
			}
			return nil
		},
		ValidArgsFunction: completeOwn[scriptTokens](o, pathTokens), RunE: o.revokeOwn(pathTokens),
	}
	return c
}

// listOwn returns the RunE function of a command that lists the user's sessions or tokens.
func listOwn[T cli.List](o *options, path string) func(*cobra.Command, []string) error {
	return func(c *cobra.Command, _ []string) error {
		return o.withSession(c, func(ctx context.Context, session *login.Session) error {
			var list T
			if err := askHub(ctx, session, path, &list); err != nil {
				return err
			}
			return o.Print(c.OutOrStdout(), list, list.Text)
		})
	}
}

// revokeOwn returns the RunE function of a command that revokes the user's sessions or tokens, and reports each. A
// failure must not keep the others valid. The current session ends last, as by logout, because the requests need it.
func (o *options) revokeOwn(path string) func(*cobra.Command, []string) error {
	return func(c *cobra.Command, ids []string) error {
		var failed []error
		var current bool
		for _, id := range ids {
			err := o.withSession(c, func(ctx context.Context, session *login.Session) error {
				if own := session.Claims().Session; own != "" && own == id {
					current = true
					return nil
				}
				if err := revokeOne(ctx, session, path, id); err != nil {
					return err
				}
				c.Printf("Revoked %s.\n", id)
				return nil
			})
			failed = append(failed, err)
			if errors.Is(err, login.ErrSignedOut) {
				break
			}
		}
		if current {
			failed = append(failed, o.logout(c, false))
		}
		return errors.Join(failed...)
	}
}

// completeOwn completes the IDs of the user's sessions or tokens.
func completeOwn[T cli.List](o *options, path string) cobra.CompletionFunc {
	return func(c *cobra.Command, args []string, start string) ([]string, cobra.ShellCompDirective) {
		ctx, cancel := context.WithTimeout(c.Context(), cli.CompletionLimit)
		defer cancel()
		var list T
		session, err := o.signedIn(ctx)
		if err != nil || askHub(ctx, session, path, &list) != nil {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		found := slices.DeleteFunc(list.Names(), func(id string) bool { return slices.Contains(args, id) })
		return cli.Beginning(start, found)
	}
}

func revokeOne(ctx context.Context, session *login.Session, path, id string) error {
	if err := callHub(ctx, session, http.MethodDelete, path+"/"+url.PathEscape(id), nil, &struct{}{}); err != nil {
		return fmt.Errorf("revoke %s: %w", id, err)
	}
	return nil
}

// withSession calls do with the user's session for the hub.
func (o *options) withSession(c *cobra.Command, do func(context.Context, *login.Session) error) error {
	ctx, cancel := cli.Bounded(c.Context())
	defer cancel()
	session, err := o.signedIn(ctx)
	if err != nil {
		return err
	}
	return do(ctx, session)
}

// Text formats a table for users.
func (l scriptTokens) Text() string {
	if len(l.Items) == 0 {
		return "You have no tokens for scripts.\n"
	}
	var b strings.Builder
	table := tabwriter.NewWriter(&b, 0, 0, 3, ' ', 0)
	fmt.Fprintln(table, "ID\tCLUSTER\tEXPIRES\tLAST USED\tDESCRIPTION")
	for _, t := range l.Items {
		used := "never"
		if t.LastUsed != nil {
			used = t.LastUsed.Local().Format(time.RFC3339)
		}
		fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%s\n", cli.Plain(t.ID), cli.Plain(cmp.Or(t.Cluster, "all")),
			t.Expires.Local().Format(time.RFC3339), used, cli.Plain(t.Description))
	}
	_ = table.Flush() // writing to memory does not fail
	return b.String()
}
