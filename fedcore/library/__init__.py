"""What `import fedcore` offers for a script or a notebook: `train` and `plan`, in this process, without a server."""
