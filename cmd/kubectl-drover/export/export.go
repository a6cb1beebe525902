// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package export reads a Rancher server's objects and writes them to a folder as Drover's objects.
//
// Package rancher does the conversion.
package export

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/drover-dev/drover/cmd/kubectl-drover/cli"
	"github.com/drover-dev/drover/cmd/kubectl-drover/rancher"
)

type exporter struct {
	rancher.Options
	flags      *cli.Options
	dir        string
	principals string
	contexts   []string
	force      bool
	partial    bool
	out        io.Writer
	progress   io.Writer
}

// New returns the command "rancher".
func New(o *cli.Options) *cobra.Command {
	c := &cobra.Command{Use: "rancher", Short: "Migrate from Rancher"}
	c.AddCommand(newExport(o))
	return c
}

func newExport(o *cli.Options) *cobra.Command {
	e := &exporter{flags: o}
	c := &cobra.Command{
		Use:   "export DIR --workspace WORKSPACE",
		Short: "Export a Rancher server's objects as a folder of Drover's objects",
		Long: `Export a Rancher server's objects as a folder of Drover's objects, for GitOps or "kubectl
apply -k". REPORT.md in the folder lists the objects without a counterpart and the decisions that
are left to you, and says what to do next.

The context of your kubeconfig must lead to the cluster that Rancher runs in. The command only gets
and lists objects there; docs/guide/from-rancher.md has the ClusterRole for it.

A repeated export overwrites the files of DIR that the previous one wrote, unless a person has
changed them since. It removes the files of objects that no longer exist. Exporting the same objects
again changes nothing.

The file principals.yaml maps Rancher's users and groups to users and groups in Drover. Complete it,
and export again with --principals.

Values of Secrets are read only with --with-secrets.

Exit codes: 0 everything was read and written; 2 an error occurred, or something could not be read.`,
		Example: `  kubectl drover rancher export fleet -w team-a --context rancher-local
  kubectl drover rancher export fleet -w team-a --context rancher-local --principals fleet/principals.yaml
  kubectl drover rancher export fleet -w team-a --cluster prod-eu --member-context prod-eu=prod-eu-admin`,
		Args: cli.Arguments(1, "a folder"), ValidArgsFunction: cli.CompleteFolders,
		RunE: func(c *cobra.Command, args []string) error {
			e.dir, e.out, e.progress = args[0], c.OutOrStdout(), c.ErrOrStderr()
			return e.run(c.Context())
		},
	}
	flags := c.Flags()
	flags.StringVarP(&e.Workspace, "workspace", "w", "", "The workspace that the objects are for (required)")
	flags.StringArrayVar(&e.Clusters, "cluster", nil, "The name or display name of a cluster to export; can be repeated "+
		"(default: all except Rancher's own)")
	flags.StringArrayVar(&e.contexts, "member-context", nil, "CLUSTER=CONTEXT: also read that cluster's namespaces and "+
		"Plans through the kubeconfig context; can be repeated")
	flags.StringVar(&e.principals, "principals", "", "The completed file that maps Rancher's principals to Drover's")
	cli.Complete(c, "principals", cli.CompleteFiles)
	flags.BoolVar(&e.SecretValues, "with-secrets", false, "Also write the Secrets of projects, with their values, into "+
		"the folder secrets, readable only by you")
	flags.BoolVar(&e.force, "force", false, "Overwrite files of the folder that a person created or changed")
	flags.BoolVar(&e.partial, "partial", false, "Write the export even if some objects could not be read; their files "+
		"are removed")
	c.PreRunE = func(*cobra.Command, []string) error { return e.check() }
	o.BindOutputAs(c, "The format of the report on standard output: text (a summary), json or yaml")
	return c
}

func (e *exporter) check() error {
	if e.flags.HubName != "" {
		return errors.New("rancher export does not support --hub: select the Rancher server with --context or --kubeconfig")
	}
	if problems := validation.IsDNS1123Label(e.Workspace); len(problems) > 0 {
		return errors.New("no workspace is given: set --workspace to a namespace of the hub")
	}
	return e.flags.CheckOutput()
}

// run reads and converts all objects, and then writes them.
func (e *exporter) run(ctx context.Context) error {
	if err := e.readPrincipals(); err != nil {
		return err
	}
	objects, err := e.read(ctx)
	if err != nil {
		return err
	}
	if missing := e.Missing(objects); len(missing) > 0 {
		return fmt.Errorf("rancher has no cluster %s", strings.Join(missing, ", "))
	}
	unread := cli.Map(objects.Unread, func(u rancher.Unread) string { return u.What + ": " + u.Why })
	incomplete := fmt.Errorf("not everything could be read:\n%s", strings.Join(unread, "\n"))
	if len(unread) > 0 && !e.partial {
		return fmt.Errorf("nothing was written, because the files of the missing objects would be removed. Use --partial to "+
			"export the other objects; %w", incomplete)
	}
	result := rancher.Convert(objects, e.Options)
	if err := e.write(result); err != nil {
		return err
	}
	if err := e.flags.Print(e.out, result.Report, func() string { return e.summary(result.Report) }); err != nil {
		return err
	}
	if len(unread) > 0 {
		return incomplete
	}
	return nil
}

// principalsLimit is the maximum size of the file that --principals names, in bytes.
const principalsLimit = 32 << 20

func (e *exporter) readPrincipals() error {
	if e.principals == "" {
		return nil
	}
	file, err := os.Open(e.principals)
	if err != nil {
		return fmt.Errorf("read principals: %w", err)
	}
	defer func() { _ = file.Close() }()
	text, err := io.ReadAll(io.LimitReader(file, principalsLimit+1))
	if err != nil {
		return fmt.Errorf("read principals: %w", err)
	}
	if len(text) > principalsLimit {
		return fmt.Errorf("read principals: %s is larger than %d MiB", e.principals, principalsLimit>>20)
	}
	if e.Mapping, err = rancher.ReadMapping(text); err != nil {
		return fmt.Errorf("%s: %w", e.principals, err)
	}
	return nil
}

// write writes the export to a folder. Secrets are written to a separate folder with its own file of digests, because
// neither the values of Secrets nor their digests may be committed to Git.
func (e *exporter) write(result rancher.Result) error {
	files, err := result.Files()
	if err != nil {
		return err
	}
	plain, hidden := map[string][]byte{}, map[string][]byte{}
	for name, file := range files {
		if inside, found := strings.CutPrefix(name, rancher.SecretsFolder+"/"); found {
			hidden[inside] = file
		} else {
			plain[name] = file
		}
	}
	main := folder{dir: e.dir, force: e.force, fileMode: 0o644, dirMode: 0o755}
	if e.principals != "" && sameFile(e.principals, filepath.Join(e.dir, rancher.PrincipalsFile)) {
		main.given = rancher.PrincipalsFile
	}
	if err := main.write(plain); err != nil {
		return err
	}
	if !e.SecretValues {
		return nil
	}
	return folder{dir: filepath.Join(e.dir, rancher.SecretsFolder), force: e.force, fileMode: 0o600, dirMode: 0o700}.write(hidden)
}

func sameFile(a, b string) bool {
	x, err := os.Stat(a)
	if err != nil {
		return false
	}
	y, err := os.Stat(b)
	return err == nil && os.SameFile(x, y)
}

func (e *exporter) summary(r rancher.Report) string {
	var b strings.Builder
	cli.Say(&b, "Written to %s:\n", e.dir)
	for _, kind := range slices.Sorted(maps.Keys(r.Exported)) {
		fmt.Fprintf(&b, "  %d %s\n", r.Exported[kind], kind)
	}
	fmt.Fprintf(&b, "%d findings need a decision, %d are omitted, %d differ, %d have no counterpart.\n",
		r.Count(rancher.Decide), r.Count(rancher.LeftOut), r.Count(rancher.Different), r.Count(rancher.NoCounterpart))
	cli.Say(&b, "Read %s for the next steps.\n", filepath.Join(e.dir, rancher.ReportFile))
	return b.String()
}
