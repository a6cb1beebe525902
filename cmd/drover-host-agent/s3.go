// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/drover-dev/drover/agent/host/objectstore"
	"github.com/drover-dev/drover/internal/protocol"
)

// s3Command copies files to and from a bucket. A Host's instructions run this command. It reads its credentials from
// the environment, because all users on the machine can read the arguments of a process.
func s3Command() *cobra.Command {
	s3 := &cobra.Command{Use: "s3", Short: "Copy a file to or from a bucket, for instructions of the hub", Hidden: true}
	var object objectstore.Object
	var file string
	flags := s3.PersistentFlags()
	flags.StringVar(&object.Endpoint, "endpoint", "", "host of the store, with a port if it is not 443 (default: AWS)")
	flags.StringVar(&object.Bucket, "bucket", "", "bucket of the object")
	flags.StringVar(&object.Region, "region", "", "region of the bucket")
	flags.StringVar(&object.BucketLookup, "bucket-lookup", "", "how requests name the bucket: DNS or Path (default: "+
		"detected from the endpoint)")
	flags.StringVar(&object.Key, "key", "", "key of the object")
	flags.StringVar(&file, "file", "", "path of the file")
	for _, name := range []string{"bucket", "key", "file"} {
		cobra.CheckErr(s3.MarkPersistentFlagRequired(name))
	}
	by := func() objectstore.Credentials {
		return objectstore.Credentials{AccessKey: os.Getenv(protocol.EnvS3AccessKey), SecretKey: os.Getenv(protocol.EnvS3SecretKey), CA: []byte(os.Getenv(protocol.EnvS3CA))}
	}
	var patience time.Duration
	put := &cobra.Command{Use: "put", Short: "Copy a file to a bucket", Args: cobra.NoArgs, RunE: func(cmd *cobra.Command, _ []string) error {
		return objectstore.Put(cmd.Context(), object, by(), file, patience)
	}}
	put.Flags().DurationVar(&patience, "patience", 0, "how long to retry while the store is not available")
	s3.AddCommand(put,
		&cobra.Command{Use: "get", Short: "Copy an object of a bucket to a file", Args: cobra.NoArgs, RunE: func(cmd *cobra.Command, _ []string) error {
			return objectstore.Get(cmd.Context(), object, by(), file)
		}})
	return s3
}
